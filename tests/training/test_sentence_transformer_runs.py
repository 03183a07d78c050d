"""Any sentence-transformers model in a run: trained, resumed, exported, searched."""

import json
import shutil
import sys
from importlib.util import find_spec

import pytest
import torch
from launching import final_weights
from processes import run, run_ranks
from safetensors.torch import load_file
from test_loop import assert_same_tree, curve

import outsize
import outsize.training.report
from outsize.checkpoint import latest_checkpoint
from outsize.errors import ConfigError, ExportError
from outsize.models import SentenceTransformerConfig
from outsize.models.text import NoEmbeddings
from outsize.negatives import NEGATIVES
from outsize.plan import plan_run
from outsize.training.config import RunConfig
from outsize.training.export_run import export_run
from outsize.training.strict_toml import decode, encode, override, to_toml

IS_INSTALLED = find_spec("sentence_transformers") is not None
needs_library = pytest.mark.skipif(not IS_INSTALLED, reason="sentence-transformers is not there")


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # as if it was not installed
    with pytest.raises(ConfigError, match=r"needs sentence-transformers: pip install 'outsize"):
        SentenceTransformerConfig(str(tmp_path)).build_tokenizer(list)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="path must name a folder"):
        SentenceTransformerConfig(" ")
    with pytest.raises(ConfigError, match="max_tokens"):
        SentenceTransformerConfig("a", max_tokens=-1)


def assemble_folder(folder, dropout=0.1):
    """A tiny random BERT as a sentence-transformers folder, and pairs of texts."""
    from tiny_texts import make_pairs, write_bare_bert

    from outsize.integrations.sentence_transformers import assemble_model

    bare = write_bare_bert(folder / "bare", dropout=dropout)
    assemble_model(bare, max_seq_length=12).save_pretrained(str(folder / "model"))
    pairs = zip(*make_pairs(120), strict=True)
    lines = [json.dumps({"query": query, "item": item}) for query, item in pairs]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("sentence_transformers")
    return assemble_folder(tmp_path_factory.mktemp("bert"))


def make_config(folder, *settings):
    tree = {
        "data": {"kind": "text-pairs", "path": [str(folder / "pairs.jsonl")]},
        "model": {"kind": "sentence-transformers", "path": str(folder / "model"),
                  "query_prompt": "w5 "},
        "negatives": {"kind": "cache", "num_negatives": 2, "refresh": 0.1},
        "optimizer": {"learning_rate": 0.001},
        "train": {"batch_size": 24, "epochs": 2, "early_stop": False, "device": "cpu"},
        "checkpoint": {"every": 3},
    }  # fmt: skip
    tree = override(tree, settings)
    kind = NEGATIVES[tree["negatives"]["kind"]].__dataclass_fields__  # without strays
    tree["negatives"] = {k: v for k, v in tree["negatives"].items() if k == "kind" or k in kind}
    return decode(RunConfig, tree, "test")


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_a_sentence_transformer_is_trained_resumed_and_exported(folder, tmp_path, monkeypatch):
    from retrieval_runs import train_until
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr(outsize.training.report, "write_report", lambda *given: None)
    config = make_config(folder)
    result = outsize.train(config, tmp_path / "whole", quiet=True)
    train_until(5, config, tmp_path / "stopped")
    outsize.train(config, tmp_path / "stopped", resume=True, quiet=True)
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")
    assert_same_tree(final_weights(tmp_path / "stopped"), final_weights(tmp_path / "whole"))
    written = export_run(result.out, tmp_path / "exported")
    assert written["num_parameters"] > 1000
    model = outsize.load_exported(tmp_path / "exported")
    assert model.search(["w1 w2"], 2).scores.shape == (1, 2)
    plain = SentenceTransformer(str(tmp_path / "exported" / "encoder"), device="cpu")
    expected = torch.from_numpy(plain.encode(["w5 w1 w2", "w5 w3"]))
    torch.testing.assert_close(model.encode_query_texts(["w1 w2", "w3"]), expected)
    with pytest.raises(ConfigError, match="has no tables to quantize"):
        export_run(result.out, tmp_path / "small", quantize="int8")
    (tmp_path / "exported" / "encoder" / "stray.txt").write_text("")
    with pytest.raises(ExportError, match=r"encoder/stray.txt is not one that was written"):
        outsize.load_exported(tmp_path / "exported")


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_texts_longer_than_the_model_takes_are_cut_and_counted(folder):
    tokenizer = SentenceTransformerConfig(str(folder / "model")).build_tokenizer(list)
    assert tokenizer.max_tokens == 12
    found = tokenizer.encode(["w1 " * 10, "w1 " * 11, "", "w2"], False)
    assert found.num_cut == 1
    assert (found.ids >= 0).sum(dim=1).tolist() == [12, 12, 2, 3]
    fewer = SentenceTransformerConfig(str(folder / "model"), max_tokens=4)
    assert fewer.build_tokenizer(list).encode(["w1 w2 w3"], False).ids.shape == (1, 4)


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_model_or_cannot_be_planned_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"there is no modules.json in it"):
        SentenceTransformerConfig(str(folder / "bare")).build_tokenizer(list)
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="in a pickle, which is never loaded"):
        SentenceTransformerConfig(str(tmp_path)).build_tokenizer(list)
    with pytest.raises(ConfigError, match="has no tables to plan"):
        plan_run(make_config(folder))


@needs_library
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        ["negatives.kind=in-batch", "negatives.across_ranks=true", "train.batch_size=11"],
        pytest.param(["negatives.kind=exact", "negatives.chunk_size=5"], marks=pytest.mark.slow),
    ],
    ids=["in-batch", "in chunks"],
)
def test_two_ranks_equal_one_process_with_twice_the_batch(tmp_path, settings):
    # Dropout draws on every rank for itself, so there is none here.
    folder = assemble_folder(tmp_path, dropout=0.0)
    config = make_config(folder, "train.batch_size=12", "train.epochs=1", *settings)
    path = tmp_path / "run.toml"
    path.write_text(to_toml(encode(config)))
    one, two = tmp_path / "one", tmp_path / "two"
    double = f"train.batch_size={2 * config.train.batch_size}"
    alone = run("-m", "outsize", "train", path, "--out", one, "--set", double)
    assert alone.returncode == 0, alone.stderr
    code, output, errors = run_ranks(2, "-m", "outsize", "train", path, "--out", two, "--json")
    assert code == 0, errors
    assert json.loads(output)["stopped"] == "finished"
    for expected, found in zip(curve(one), curve(two), strict=True):
        for name in expected.keys() - {"split"}:
            assert found[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-5), name
    weights, others = final_weights(one), final_weights(two)
    assert weights.keys() == others.keys()
    for name, expected in weights.items():
        torch.testing.assert_close(others[name], expected, rtol=1e-3, atol=1e-4)


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_ranks_share_a_cache_of_a_sentence_transformer_and_resume_it(folder, tmp_path):
    # 96 pairs in batches of 38: the last is of 20.
    config = make_config(folder, "train.batch_size=19", "train.epochs=1", "checkpoint.every=1",
                         "checkpoint.keep=9")  # fmt: skip
    path = tmp_path / "run.toml"
    path.write_text(to_toml(encode(config)))
    words = ["-m", "outsize", "train", path, "--json", "--out", tmp_path / "run"]
    code, _, errors = run_ranks(2, *words)
    assert code == 0, errors
    newest = latest_checkpoint(tmp_path / "run" / "checkpoint")
    shards = [load_file(newest / f"cache-{r:05}-of-00002.safetensors") for r in range(2)]
    num_items = len((folder / "pairs.jsonl").read_text().splitlines())
    held = [len(next(value for name, value in shard.items() if name.endswith("keys")))
            for shard in shards]  # fmt: skip
    assert sum(held) == num_items
    assert min(held) > 0
    whole, weights = curve(tmp_path / "run"), final_weights(tmp_path / "run")
    shutil.rmtree(newest)
    code, _, errors = run_ranks(2, *words, "--resume")
    assert code == 0, errors
    assert curve(tmp_path / "run") == whole
    assert_same_tree(final_weights(tmp_path / "run"), weights)


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_weights_that_no_text_reaches_are_refused_on_ranks(folder):
    model = SentenceTransformerConfig(str(folder / "model")).build(NoEmbeddings(), (), (), 0)
    model.require_all_used()
    model.encoder.register_parameter("image_tower", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(ConfigError, match=r"no text reaches 1 weights of the model \(image_tower"):
        model.require_all_used()
