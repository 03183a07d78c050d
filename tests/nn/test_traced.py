"""Drop-in modules inside a torch model that is traced."""

import pytest
import torch
from torch import nn

import outsize

pytestmark = [
    pytest.mark.usefixtures("unchecked_shapes"),  # sizes of a trace are not integers
    pytest.mark.skipif(
        not hasattr(torch.compiler, "is_exporting"), reason="tracing needs torch 2.7"
    ),
]


class Words(nn.Module):
    """A model of somebody else's, over two embeddings."""

    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(60, 8, padding_idx=0)
        self.tags = nn.EmbeddingBag(50, 8, mode="mean")
        self.out = nn.Linear(16, 1)

    def forward(self, words, tags, offsets):
        both = torch.cat([self.word(words), self.tags(tags, offsets)], dim=1)
        return self.out(both).squeeze(1)


@pytest.mark.parametrize("method", ["pq", "cce"])
def test_compressed_embeddings_of_a_torch_model_are_traced_with_no_difference(method):
    torch.manual_seed(0)
    model = Words().eval()
    outsize.compress_(model, method=method, factor=1.5, min_rows=1)
    draw = torch.Generator().manual_seed(1)

    def batch(size):
        lengths = torch.randint(0, 3, (size,), generator=draw)
        tags = torch.randint(50, (int(lengths.sum()) + 1,), generator=draw)
        return torch.randint(60, (size,), generator=draw), tags, lengths.cumsum(0) - lengths

    size = torch.export.Dim("size")
    shapes = ({0: size}, {0: torch.export.Dim.AUTO}, {0: size})
    program = torch.export.export(model, batch(5), dynamic_shapes=shapes, strict=False)
    for rows in (1, 3, 40):
        given = batch(rows)
        with torch.no_grad():
            assert torch.equal(program.module()(*given), model(*given))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace")
@pytest.mark.parametrize("method", outsize.TABLES)
def test_a_trace_of_any_method_looks_up_other_ids(method):
    options = {} if method == "full" else {"max_params": 480}
    model = nn.Sequential(outsize.nn.Embedding(211, 6, method=method, **options), nn.Linear(6, 2))
    traced = torch.jit.trace(model, (torch.arange(5),), check_trace=False)
    ids = torch.arange(211)
    torch.testing.assert_close(traced(ids), model(ids))
