"""The text encoder: its formula, and what does not change a text's vector."""

import pytest
import torch

import outsize
from outsize.errors import ConfigError, DataError
from outsize.models import TextConfig
from outsize.models.text import ITEM_TOKENS, QUERY_TOKENS, WordTokenizer
from outsize.models.text.groups import in_groups

TEXTS = ["merge sorted lists", "sort lists in place", "parse a list of numbers", "open a file"]


def make(*, width=8, **settings):
    config = TextConfig(**{"dim": 8, "min_count": 1, "num_buckets": 20, **settings})
    tokenizer = config.build_tokenizer(lambda: TEXTS)
    names = dict.fromkeys(config.tables)
    store = outsize.LocalStore(
        [outsize.TableSpec(name, tokenizer.num_tokens, width) for name in names], seed=1
    )
    features = [
        outsize.FeatureSpec(name, table, padding_id=-1)
        for name, table in zip((QUERY_TOKENS, ITEM_TOKENS), config.tables, strict=True)
    ]
    embeddings = outsize.EmbeddingCollection(features, store)
    model = config.build(embeddings, (QUERY_TOKENS,), (ITEM_TOKENS,), seed=0)
    model.use_tokenizer(tokenizer)
    return model


def test_a_text_is_the_weighted_mean_of_its_tokens():
    model = make(normalize=False)
    (vector,) = model.encode_query_texts(["merge lists"])
    tokens = torch.tensor(model.tokenizer.tokens_of("merge lists"))
    rows = model.embeddings.store.read(tokens, table="tokens")
    weights = model.token_weights[tokens]
    expected = (rows * weights.unsqueeze(1)).sum(dim=0) / weights.sum()
    torch.testing.assert_close(vector, expected)


@pytest.mark.parametrize("layers", [0, 2])
def test_a_vector_does_not_depend_on_the_other_texts_of_its_batch(layers):
    model = make(layers=layers, heads=2)
    together = model.encode_item_texts(TEXTS)
    alone = torch.cat([model.encode_item_texts([text]) for text in TEXTS])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(model.encode_item_texts(TEXTS, batch_size=3), alone)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(len(TEXTS)))


def test_many_texts_are_encoded_as_few_are():
    model = make(layers=1, heads=2)
    texts = [" ".join(TEXTS[: 1 + n % 4]) for n in range(150)]  # more than a group
    ids = model.tokenizer.encode(texts).ids.long()
    with torch.no_grad():
        grouped = model.encode_items({ITEM_TOKENS: ids})
    torch.testing.assert_close(grouped, model.encode_items({ITEM_TOKENS: ids}).detach())
    lengths = (ids >= 0).sum(dim=1).tolist()
    found = in_groups(ids, lambda some: (some >= 0).sum(dim=1, keepdim=True).float())
    assert found.flatten().tolist() == lengths


def test_a_bag_has_no_order_and_a_transformer_does():
    texts = ["merge sorted lists", "lists merge sorted"]
    bag = make().encode_query_texts(texts)
    torch.testing.assert_close(bag[0], bag[1])
    ordered = make(layers=1).encode_query_texts(texts)
    assert not torch.allclose(ordered[0], ordered[1])


def test_queries_and_items_share_everything_or_nothing():
    shared = make()
    torch.testing.assert_close(shared.encode_query_texts(TEXTS), shared.encode_item_texts(TEXTS))
    apart = make(shared=False)
    assert not torch.allclose(apart.encode_query_texts(TEXTS), apart.encode_item_texts(TEXTS))


def test_every_weight_gets_a_gradient():
    model = make(layers=2, heads=2, shared=False, dim=6)
    ids = {name: model.tokenizer.encode(TEXTS).ids.long() for name in (QUERY_TOKENS, ITEM_TOKENS)}
    queries, items = model(ids, ids)
    (queries @ items.T).logsumexp(dim=1).sum().backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not without


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one = make(layers=1).encode_query_texts(TEXTS)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(make(layers=1).encode_query_texts(TEXTS), one)


def test_no_texts_have_no_vectors():
    assert make().encode_query_texts([]).shape == (0, 8)


def test_misuse_is_refused_in_words():
    model = make()
    with pytest.raises(ConfigError, match="give a list of texts"):
        model.encode_query_texts("merge lists")
    with pytest.raises(ConfigError, match="has no items: export its run"):
        model.item_text("a")
    with pytest.raises(DataError, match="is \\(n, length\\) token ids, but got \\(3,\\)"):
        model.encode_queries({QUERY_TOKENS: torch.zeros(3, dtype=torch.int64)})
    other = WordTokenizer.learn(
        ["a"], max_words=1, min_count=1, num_buckets=3, max_tokens=4, distinct=True
    )
    with pytest.raises(ConfigError, match="the tokenizer has 5 tokens, but the model"):
        model.use_tokenizer(other)
    with pytest.raises(ConfigError, match="heads must divide"):
        make(layers=1, heads=3)
    with pytest.raises(ConfigError, match="layers must be 64 at most"):
        TextConfig(layers=65)
