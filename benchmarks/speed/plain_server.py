"""A DLRM in plain PyTorch behind an HTTP endpoint, as one writes it without Outsize.

It takes numbers and ids: whoever asks has encoded raw values already. `serving` starts it in a
process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class PlainDLRM(nn.Module):
    """DLRM with `nn.Embedding`: bottom MLP, pairwise inner products, top MLP.

    Args:
        sizes: Rows of each embedding.
        dim: Width of a row.
        num_dense: Number of dense features.
        bottom: Widths of the hidden layers of the bottom MLP.
        top: Widths of the hidden layers of the top MLP.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        dim: int,
        num_dense: int,
        bottom: Sequence[int],
        top: Sequence[int],
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        self.bottom = _mlp([num_dense, *bottom, dim])
        num = len(sizes) + 1
        self.register_buffer("pairs", torch.tril_indices(num, num, -1))
        self.pairs: Tensor
        self.top = _mlp([dim + num * (num - 1) // 2, *top, 1])[:-1]

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The logit of each row."""
        first = self.bottom(dense)
        rows = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([first, *rows], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        logits: Tensor = self.top(torch.cat([first, flat], dim=1)).squeeze(1)
        return logits


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers)


def make_app(shape: dict[str, Any]) -> Any:
    """An ASGI application: `{"dense": [[…]], "ids": [[…]]}` in, probabilities out."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    model = PlainDLRM(**shape).eval()

    async def predict(request: Request) -> JSONResponse:
        rows = await request.json()
        with torch.no_grad():
            logits = model(torch.tensor(rows["dense"]), torch.tensor(rows["ids"]))
        return JSONResponse({"probabilities": logits.sigmoid().tolist()})

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


def serve(shape: dict[str, Any]) -> None:
    """Serve on a free port of loopback, and print the URL."""
    import socket

    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"serving on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(make_app(shape), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    """Serve the model whose shape is the first word of the command line, as JSON."""
    serve(json.loads(sys.argv[1]))
