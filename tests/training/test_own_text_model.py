"""A text encoder of one's own: one file and one line, from training to a search in its export."""

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file
from text_runs import make_text_config, write_pairs
from torch import nn

import outsize
from outsize.errors import ConfigError
from outsize.models import RETRIEVAL_MODELS, TextModel, TextModelConfig
from outsize.models.text import ITEM_TOKENS, QUERY_TOKENS, NoEmbeddings, WordTokenizer
from outsize.plan import plan_run
from outsize.training.export_run import export_run


@dataclass(frozen=True)
class LettersConfig(TextModelConfig):
    """A model with weights of its own, which it writes to a folder of its own."""

    path: str = ""
    dim: int = 8

    @property
    def tables(self):
        return None

    def build_tokenizer(self, texts):
        return WordTokenizer.learn(
            texts(), max_words=0, min_count=1, num_buckets=40, max_tokens=20, distinct=True
        )

    def load_tokenizer(self, facts, tensors):
        return WordTokenizer.from_state(facts, tensors)

    def build(self, embeddings, query_features, item_features, seed, numbers=()):
        return Letters(self)


class Letters(TextModel):
    def __init__(self, config):
        super().__init__()
        self.embeddings, self.dim = NoEmbeddings(), config.dim
        self.vectors = nn.EmbeddingBag(50, config.dim, mode="mean", padding_idx=49)
        if config.path:
            self.load_state_dict(load_file(f"{config.path}/letters.safetensors"))

    def encode_queries(self, inputs):
        return self._encode(inputs[QUERY_TOKENS])

    def encode_items(self, inputs):
        return self._encode(inputs[ITEM_TOKENS])

    def _encode(self, ids):
        return self.vectors(torch.where(ids < 0, 49, ids))

    @property
    def write_encoder(self):
        def write(folder):
            folder.mkdir()
            save_file(self.state_dict(), folder / "letters.safetensors")

        return write


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setitem(RETRIEVAL_MODELS, "letters", LettersConfig)
    pairs = write_pairs(tmp_path / "pairs.jsonl", 60)
    return make_text_config(pairs, "model={kind='letters'}", "train.epochs=1")


def test_an_own_encoder_is_trained_exported_and_searched(config, tmp_path):
    trained = outsize.train(config, tmp_path / "run", quiet=True)
    export_run(trained.out, tmp_path / "exported")
    loaded = outsize.load_exported(tmp_path / "exported")
    texts = ["ask3 ask4", "tell5"]
    assert torch.equal(loaded.encode_query_texts(texts), trained.model.encode_query_texts(texts))
    assert len(loaded.search(texts, k=2).items[0]) == 2
    assert loaded.item_text("item 7").endswith("filler7")


def test_an_own_encoder_without_tables_has_none_to_plan_or_quantize(config, tmp_path):
    with pytest.raises(ConfigError, match="'letters' has no tables to plan"):
        plan_run(config)
    outsize.train(config, tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match="letters model, which has no tables to quantize"):
        export_run(tmp_path / "run", tmp_path / "small", quantize="int8")
