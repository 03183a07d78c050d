"""Any sentence-transformers model in a run: trained, resumed, exported, searched."""

import json
from importlib.util import find_spec

import pytest
import torch

import outsize
import outsize.training.report
from outsize.errors import ConfigError, ExportError
from outsize.models import SentenceTransformerConfig
from outsize.plan import plan_run
from outsize.training.config import RunConfig
from outsize.training.export_run import export_run
from outsize.training.strict_toml import decode, override

IS_INSTALLED = find_spec("sentence_transformers") is not None
needs_library = pytest.mark.skipif(not IS_INSTALLED, reason="sentence-transformers is not there")


@pytest.mark.skipif(IS_INSTALLED, reason="sentence-transformers is there")
def test_without_the_library_one_line_says_what_to_install(tmp_path):
    with pytest.raises(ConfigError, match=r"needs sentence-transformers: pip install 'outsize"):
        SentenceTransformerConfig(str(tmp_path)).build_tokenizer(list)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="path must name a folder"):
        SentenceTransformerConfig(" ")
    with pytest.raises(ConfigError, match="max_tokens"):
        SentenceTransformerConfig("a", max_tokens=-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random BERT as a sentence-transformers folder, and pairs of texts."""
    pytest.importorskip("sentence_transformers")
    from tiny_texts import make_pairs, write_bare_bert

    from outsize.integrations.sentence_transformers import assemble_model

    folder = tmp_path_factory.mktemp("bert")
    bare = write_bare_bert(folder / "bare")
    assemble_model(bare, max_seq_length=12).save_pretrained(str(folder / "model"))
    pairs = zip(*make_pairs(120), strict=True)
    lines = [json.dumps({"query": query, "item": item}) for query, item in pairs]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return folder


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
    return decode(RunConfig, override(tree, settings), "test")


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_a_sentence_transformer_is_trained_resumed_and_exported(folder, tmp_path, monkeypatch):
    from retrieval_runs import train_until
    from sentence_transformers import SentenceTransformer
    from test_loop import assert_same_tree, curve, final_weights

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
