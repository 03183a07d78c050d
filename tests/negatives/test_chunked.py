"""Encoding in chunks changes memory, not results."""

import pytest
import torch
from torch import nn

from outsize.negatives import in_chunks


class Encoder(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Dropout(dropout), nn.Linear(32, 4))
        self.rows: list[int] = []

    def forward(self, features):
        self.rows.append(len(features["id"]))
        return self.layers(self.table(features["id"]) * features["weight"].unsqueeze(1))


def inputs(num):
    return {"id": torch.arange(num) % 50, "weight": torch.rand(num)}


@pytest.mark.parametrize("num", [1, 7, 8, 30])
def test_chunks_give_the_embeddings_and_gradients_of_one_pass(num):
    features, whole, chunked = inputs(num), Encoder(), Encoder()
    one = whole(features)
    other = in_chunks(chunked, 8)(features)
    torch.testing.assert_close(one, other)
    for embeddings in (one, other):
        scores = embeddings @ embeddings.T
        (scores.logsumexp(1) - scores.diagonal()).mean().backward()
    for a, b in zip(whole.parameters(), chunked.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert max(chunked.rows) <= 8


def test_a_chunk_is_encoded_again_with_the_same_dropout():
    encoder, features = Encoder(dropout=0.5), inputs(20)
    torch.manual_seed(1)
    embeddings = in_chunks(encoder, 5)(features)
    (gradient,) = torch.autograd.grad(embeddings.square().sum(), encoder.layers[2].bias)
    torch.testing.assert_close(gradient, 2 * embeddings.detach().sum(0))
    assert encoder.rows == [5] * 8


def test_without_gradients_nothing_is_encoded_twice():
    encoder = Encoder()
    with torch.no_grad():
        in_chunks(encoder, 5)(inputs(20))
    assert encoder.rows == [5] * 4


def test_no_chunk_size_leaves_an_encoder_as_it_is():
    encoder = Encoder()
    assert in_chunks(encoder, None) is encoder
