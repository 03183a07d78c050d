"""The texts of a run, tokenized by the model that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from jaxtyping import Int32
from torch import Tensor

from outsize.data import TextDataConfig, TextPairs, TokenData
from outsize.data.encoding.text_keys import Column
from outsize.data.texts.token_data import TokenFeature, text_batches, training_queries
from outsize.interrupts import check_stop
from outsize.models import TextModelConfig
from outsize.models.text import ITEM_TOKENS, QUERY_TOKENS, Tokenizer, encode_all
from outsize.reporting.progress import counting
from outsize.training.config import RunConfig


def build_text_data(config: RunConfig) -> TokenData:
    """Read the texts of a run and tokenize them, with a progress bar on a terminal.

    A vocabulary is learned from the training queries and all items.
    """
    assert isinstance(config.data, TextDataConfig)
    assert isinstance(config.model, TextModelConfig)  # as `RunConfig` has made sure
    texts = config.data.read()
    rows = training_queries(texts)
    with counting("learn words", len(rows) + len(texts.items)) as advance:

        def learned_from() -> Iterator[str]:
            parts = (text_batches(texts.queries.texts, rows), text_batches(texts.items.texts))
            for batch in chain(*parts):
                check_stop()
                yield from batch
                advance(len(batch))

        tokenizer = config.model.build_tokenizer(learned_from)
    return _tokenized(config, texts, tokenizer)


def _tokenized(config: RunConfig, texts: TextPairs, tokenizer: Tokenizer) -> TokenData:
    assert isinstance(config.data, TextDataConfig)
    assert isinstance(config.model, TextModelConfig)
    tables = config.model.tables or ("", "")
    notes, features = [], []
    for name, table, side, what in (
        (QUERY_TOKENS, tables[0], texts.queries, "queries"),
        (ITEM_TOKENS, tables[1], texts.items, "items"),
    ):
        ids, num_cut = _token_ids(tokenizer, side.texts, what)
        features.append(TokenFeature(name, table, tokenizer.num_tokens, ids))
        if num_cut:
            notes.append(
                f"{num_cut:,} of {len(side):,} {what} have more than {tokenizer.max_tokens:,} "
                "tokens: cut"
            )
    data = TokenData(texts, features[0], features[1], config.data.shuffle, config.data.seed)
    data.tokenizer = tokenizer
    data.notes = (*texts.notes, *notes)
    return data


def _token_ids(
    tokenizer: Tokenizer, texts: Column, what: str
) -> tuple[Int32[Tensor, "n longest"], int]:
    with counting(f"tokenize {what}", len(texts)) as advance:

        def batches() -> Iterator[list[str]]:
            for batch in text_batches(texts):
                check_stop()
                yield batch

        found = encode_all(tokenizer, batches(), what == "queries", advance)
    return found.ids, found.num_cut
