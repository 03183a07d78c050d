"""The loss with sentence-transformers itself: its Trainer, its wrappers, its files."""

import importlib.util
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import processes
import pytest
import torch
from tiny_texts import make_pairs, write_bare_bert

if importlib.util.find_spec("sentence_transformers") is None:
    pytest.skip("sentence-transformers is not installed (extra `text`)", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # those of other libraries
    pytest.mark.usefixtures("unchecked_shapes"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentence_transformers_trainer.py"
ANCHORS, TEXTS = make_pairs(256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny BERT in the format of sentence-transformers, and pairs."""
    from outsize.integrations.sentence_transformers import assemble_model

    path = tmp_path_factory.mktemp("text")
    model = assemble_model(write_bare_bert(path / "bare"), max_seq_length=24)
    model.save_pretrained(str(path / "model"))
    lines = [
        json.dumps({"anchor": anchor, "positive": text})
        for anchor, text in zip(ANCHORS, TEXTS, strict=True)
    ]
    (path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def model(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder / "model"), device="cpu")


def train(model, out, loss=None, columns=None, callbacks=True, evaluate=False, **options):
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    from outsize.integrations.sentence_transformers import NegativeCacheLoss

    loss = loss or NegativeCacheLoss(model, corpus=TEXTS)
    columns = columns or {"anchor": ANCHORS[:16], "positive": TEXTS[:16]}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        per_device_train_batch_size=4,
        logging_steps=1,
        max_steps=2,
        **{"save_strategy": "no", **options},
    )
    data = Dataset.from_dict(columns)
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data if evaluate else None,
        loss=loss,
        callbacks=[loss.callback()] if callbacks else None,
    )
    trainer.train()
    return loss, trainer.state.log_history


def run_example(folder, out, monkeypatch, *more):
    monkeypatch.setattr(
        sys,
        "argv",
        [str(EXAMPLE), *map(str, (folder / "model", folder / "pairs.jsonl", out)), *more],
    )
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    return runpy.run_path(str(EXAMPLE), run_name="__main__")["trainer"].state.log_history


def curve(history):
    return [(line["step"], line["loss"]) for line in history if "loss" in line]


def test_the_example_killed_and_resumed_gives_the_same_curve(folder, tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer

    assert len(EXAMPLE.read_text().splitlines()) <= 30
    whole = run_example(folder, tmp_path / "run", monkeypatch)
    assert len(curve(whole)) == 8
    assert whole[0]["cache_held"] == 256
    for step in (6, 8):  # as if it was killed after step 5
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
    before = SentenceTransformer(str(tmp_path / "run" / "final")).encode(TEXTS[:4])
    shutil.rmtree(tmp_path / "run" / "final")
    resumed = run_example(folder, tmp_path / "run", monkeypatch, "--resume")
    assert curve(resumed) == curve(whole)
    after = SentenceTransformer(str(tmp_path / "run" / "final")).encode(TEXTS[:4])
    assert (before == after).all()
    files = {path.name for path in (tmp_path / "run/checkpoint-4/negative_cache").iterdir()}
    assert files == {"cache-00000-of-00001.safetensors", "manifest.json", "texts.json"}


def train_on_two_sets(folder, out, same_folder=False, resume=False):
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    from outsize.integrations.sentence_transformers import NegativeCacheLoss

    model = SentenceTransformer(str(folder / "model"), device="cpu")
    losses = {"a": NegativeCacheLoss(model, corpus=TEXTS[:32]), "b": NegativeCacheLoss(model)}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_steps=1,
        max_steps=4,
        multi_dataset_batch_sampler="round_robin",
    )
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset={
            "a": Dataset.from_dict({"anchor": ANCHORS[:16], "positive": TEXTS[:16]}),
            "b": Dataset.from_dict({"anchor": ANCHORS[32:48], "positive": TEXTS[32:48]}),
        },
        loss=losses,
        callbacks=[
            loss.callback("cache" if same_folder else f"cache_{name}")
            for name, loss in losses.items()
        ],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer.state.log_history


def test_a_loss_for_each_data_set_resumes_before_and_after_its_first_batch(folder, tmp_path):
    from outsize.errors import ConfigError

    whole = train_on_two_sets(folder, tmp_path)
    assert {"cache_a_held", "cache_b_held"} <= whole[-2].keys()
    unused = [
        name for name in "ab" if (tmp_path / f"checkpoint-1/cache_{name}/unused.json").is_file()
    ]
    assert len(unused) == 1  # after one step, one of them had no batch
    for last in (3, 1):
        for step in range(last + 1, 5):
            shutil.rmtree(tmp_path / f"checkpoint-{step}")
        assert curve(train_on_two_sets(folder, tmp_path, resume=True)) == curve(whole)
    with pytest.raises(ConfigError, match=r"two losses would save .* in 'cache' of a checkpoint"):
        train_on_two_sets(folder, tmp_path / "other", same_folder=True)


def test_accumulation_checkpointing_bfloat16_prompts_and_evaluation(model, tmp_path):
    columns = {"anchor": ANCHORS[:16], "positive": TEXTS[:16], "negative": TEXTS[16:32]}
    from outsize.integrations.sentence_transformers import NegativeCacheLoss, TextCacheSettings

    # The argument of the Trainer fails between sentence-transformers 6.0 and transformers 5.17.
    model.gradient_checkpointing_enable()
    assert model[0].auto_model.is_gradient_checkpointing
    settings = TextCacheSettings(corpus_prompt="w5 ", num_refreshed=8)
    loss, history = train(
        model,
        tmp_path,
        NegativeCacheLoss(model, TEXTS, settings=settings),
        columns,
        evaluate=True,
        gradient_accumulation_steps=2,
        bf16=True,
        prompts={"anchor": "w4 ", "positive": "w5 ", "negative": "w5 "},
        eval_strategy="steps",
        eval_steps=1,
    )
    assert loss.cache.clock == 2  # two optimizer steps of two batches, and evaluations between
    assert len(curve(history)) == 2
    assert sum("eval_loss" in line for line in history) == 2
    assert loss.metrics()["skipped"] == 0


@pytest.mark.parametrize("way", ["together", "alone", "sets"])
def test_ranks_of_a_trainer_share_a_cache_and_resume_or_are_told_why_not(folder, tmp_path, way):
    if way == "alone" and torch.cuda.is_available():
        pytest.skip("the Trainer knows of its ranks where there is a GPU")
    shutil.copytree(folder / "model", tmp_path / "model")
    script = Path(__file__).with_name("check_trainer_ranks.py")
    code, output, errors = processes.run_ranks(2, str(script), str(tmp_path), way)
    assert code == 0, errors[-3000:]
    assert output.endswith("all checks passed\n")


def test_with_save_only_model_no_cache_is_saved_and_a_resumed_run_fills_one(folder, tmp_path):
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    from outsize.errors import CheckpointError
    from outsize.integrations.sentence_transformers import NegativeCacheLoss

    def resume(resumed, is_anew=False, **options):
        model = SentenceTransformer(str(folder / "model"), device="cpu")
        loss = NegativeCacheLoss(model, corpus=TEXTS)
        loss.is_loaded = is_anew
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            per_device_train_batch_size=4,
            max_steps=4,
            save_steps=2,
            **options,
        )
        data = Dataset.from_dict({"anchor": ANCHORS[:16], "positive": TEXTS[:16]})
        trainer = SentenceTransformerTrainer(
            model, arguments, train_dataset=data, loss=loss, callbacks=[loss.callback()]
        )
        trainer.train(resume_from_checkpoint=resumed)
        return loss.cache.clock

    assert resume(None, save_only_model=True) == 4
    assert not (tmp_path / "checkpoint-2" / "negative_cache").exists()
    half = str(tmp_path / "checkpoint-2")
    assert resume(half, save_only_model=True) == 2
    with pytest.raises(CheckpointError, match=r"set loss\.is_loaded = True"):
        resume(half)
    assert resume(half, is_anew=True) == 2
    assert (tmp_path / "checkpoint-4" / "negative_cache").is_dir()


def test_gradients_reach_an_adapter_only(model, tmp_path):
    peft = pytest.importorskip("peft")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    names = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert names
    assert all("lora" in name for name in names)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    loss, _ = train(model, tmp_path, learning_rate=0.01)
    changed = {
        name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])
    }
    assert changed == names
    assert loss.cache.clock == 2


def test_a_wrapper_that_would_corrupt_the_cache_is_refused(model):
    from sentence_transformers.sentence_transformer import losses

    from outsize.errors import ConfigError
    from outsize.integrations.sentence_transformers import NegativeCacheLoss

    inner = NegativeCacheLoss(model, TEXTS)
    features = [model.preprocess(ANCHORS[:3]), model.preprocess(TEXTS[:3])]
    for wrapper in (
        losses.MatryoshkaLoss(model, inner, [16, 8]),
        losses.AdaptiveLayerLoss(model, inner),
    ):
        with pytest.raises(ConfigError, match="cannot be wrapped in MatryoshkaLoss"):
            wrapper(features, None)


def test_a_trainer_without_the_callback_is_told_so(model, tmp_path):
    from outsize.errors import ConfigError

    with pytest.raises(ConfigError, match=r"callbacks=\[loss.callback\(\)\]"):
        train(model, tmp_path, callbacks=False)


def test_bare_weights_become_a_model_that_says_what_they_say(folder, model, tmp_path):
    from transformers import AutoTokenizer, BertConfig, BertModel

    from outsize.errors import DataError
    from outsize.integrations.sentence_transformers import assemble_model
    from outsize.verified_folders import open_tensors

    bare = folder / "bare"
    encoder = BertModel(BertConfig.from_pretrained(bare)).eval()
    with open_tensors(bare / "model.fp16.safetensors") as tensors:
        names = tensors.keys()
        encoder.load_state_dict({name: tensors.get_tensor(name).float() for name in names})
    inputs = AutoTokenizer.from_pretrained(bare)(TEXTS[:5], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = encoder(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(2)
    expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    found = model.encode(TEXTS[:5], convert_to_tensor=True)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(DataError, match=r"one file of weights \(\*.safetensors\), but has 0"):
        assemble_model(tmp_path)


def test_the_blocks_of_the_page_run(folder, model, tmp_path, monkeypatch):
    page = (EXAMPLE.parents[1] / "docs" / "text.md").read_text()
    example, evaluating, loop, assembling = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert example == EXAMPLE.read_text()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "bare", tmp_path / "encoders" / "all-MiniLM-L6-v2-fp16")
    exec(assembling, {})
    exec(loop, names := {})
    exec(evaluating, names)
    assert (tmp_path / "cache" / "texts.json").is_file()
