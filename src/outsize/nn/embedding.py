"""A drop-in for `torch.nn.Embedding` over a compressed table."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.nn.table_module import (
    Device,
    TableModule,
    budget_of_table,
    ids_of,
    make_table,
    require_honoured,
    require_matrix,
    resolve_padding,
    spec_of,
)
from outsize.spec import Init
from outsize.tables import FullTable


class Embedding(TableModule):
    """`torch.nn.Embedding` with a compressed table inside: ids of any shape → shape + (dim,).

    The positional arguments are torch's. Ids are int32 or int64; one out of range raises `IdError`
    (on CUDA when `raise_if_bad_ids` is called). The vector of `padding_idx` starts as zero and is
    never trained.

    `weight` is the parameter of a full table. A compressed one has no such matrix: `table` holds
    its parameters, and `materialize()` computes all rows as an `nn.Embedding`.

    Args:
        num_embeddings: Number of ids.
        embedding_dim: Width of a vector.
        padding_idx: An id whose vector is not trained; counted from the end if negative.
        max_norm: Refused: ids share parameters.
        norm_type: Of `max_norm`.
        scale_grad_by_freq: Refused: ids share parameters.
        sparse: Sparse gradients, for method "full" only.
        _weight: Trained rows to start from, as `from_pretrained` gives them.
        _freeze: Leave the parameters untrained.
        device: Device of the table.
        dtype: Type of its parameters.
        method: A key of `outsize.TABLES`; with trained rows also "pq", product quantization.
        max_params: The most trainable numbers.
        max_bytes: The most bytes, including index maps and the padding row.
        init: The distribution of initial vectors. By default that of `nn.Embedding`, normal with
            standard deviation 1; `outsize.Init()` is the smaller one of the library's tables.
        seed: Seed of everything random; by default drawn from torch's global generator, so that
            `torch.manual_seed` decides it.
        name: Name of the table in errors.
        **options: The method's own settings, such as `columns`.
    """

    padding_row: Tensor | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Float[Tensor, "..."] | None = None,
        _freeze: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        method: str = "cce",
        max_params: int | None = None,
        max_bytes: int | None = None,
        init: Init | None = None,
        seed: int | None = None,
        name: str = "embedding",
        **options: Any,
    ) -> None:
        require_honoured(
            "outsize.nn.Embedding", max_norm, scale_grad_by_freq, sparse and method != "full"
        )
        spec = spec_of(name, num_embeddings, embedding_dim, init, dtype, _weight)
        padding_idx = resolve_padding(padding_idx, num_embeddings)
        keeps_row = padding_idx is not None and method != "full"
        padding_bytes = embedding_dim * spec.dtype.itemsize if keeps_row else 0
        table = make_table(
            method,
            spec,
            budget_of_table(spec, max_params, max_bytes, padding_bytes),
            rows=_weight,
            ignored=padding_idx,
            device=device,
            seed=seed,
            options={**options, "sparse": True} if sparse else options,
        )
        if isinstance(table, FullTable) and padding_idx is not None and _weight is None:
            table.weight.detach()[padding_idx].zero_()
        table.requires_grad_(not _freeze)
        row = None if _weight is None or padding_idx is None else _weight[padding_idx]
        self._hold(table, padding_idx, row)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Float[Tensor, "..."],
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        method: str = "pq",
        **settings: Any,
    ) -> Embedding:
        """Compress trained rows; the padding row keeps its exact vector.

        Args:
            embeddings: The rows, `(num_embeddings, embedding_dim)`.
            freeze: Leave the parameters untrained, torch's default.
            padding_idx: As for the class.
            max_norm: As for the class.
            norm_type: As for the class.
            scale_grad_by_freq: As for the class.
            sparse: As for the class.
            method: "pq" for product quantization, or a key of `outsize.TABLES`; see
                `outsize.EmbeddingTable.fit_rows` for how the others start from rows.
            **settings: The budget, `seed`, `name` and options of the method, as for the class.
        """
        require_matrix(embeddings)
        num_embeddings, embedding_dim = embeddings.shape
        return cls(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            embeddings,
            freeze,
            method=method,
            **settings,
        )

    @classmethod
    def from_table(
        cls,
        table: EmbeddingTable,
        padding_idx: int | None = None,
        padding_row: Float[Tensor, " dim"] | None = None,
    ) -> Embedding:
        """A module over an existing table, which other modules may share.

        Args:
            table: The table.
            padding_idx: As for the class.
            padding_row: The vector of padding; zero by default, or that of a full table.
        """
        module = cls.__new__(cls)
        module._hold(table, padding_idx, padding_row)
        return module

    def forward(self, input: Integer[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        """The vectors of ids of any shape."""
        ids = ids_of(input)
        vectors: Tensor = self.table(ids)
        if self.padding_idx is None:
            return vectors
        fixed = vectors.detach() if self.padding_row is None else self.padding_row
        return torch.where((ids == self.padding_idx).unsqueeze(-1), fixed, vectors)

    @torch.no_grad()
    def materialize(self) -> nn.Embedding:
        """The equivalent trainable `nn.Embedding`, with one row per id."""
        embedding = self.table.materialize()
        embedding.padding_idx = self.padding_idx
        if self.padding_idx is not None and self.padding_row is not None:
            embedding.weight[self.padding_idx] = self.padding_row
        return embedding

    def _hold(
        self, table: EmbeddingTable, padding_idx: int | None, row: Float[Tensor, " dim"] | None
    ) -> None:
        """Set up the module; padding has a row of its own unless the table is full."""
        super().__init__(table, padding_idx)
        self.register_buffer("padding_row", None)
        if self.padding_idx is not None and not isinstance(table, FullTable):
            like = next(table.parameters())
            zeros = like.new_zeros(table.spec.dim)
            self.padding_row = zeros if row is None else row.detach().to(like).clone()
