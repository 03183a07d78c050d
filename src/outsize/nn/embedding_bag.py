"""A drop-in for `torch.nn.EmbeddingBag` over a compressed table."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError, DataError
from outsize.nn.table_module import (
    Device,
    TableModule,
    ids_of,
    make_table,
    require_honoured,
    require_matrix,
    resolve_padding,
    spec_of,
)
from outsize.spec import POOLINGS, Budget, Init, Pooling


class EmbeddingBag(TableModule):
    """`torch.nn.EmbeddingBag` with a compressed table inside: bags of ids → (bags, dim).

    The positional arguments are torch's. Ids and offsets are int32 or int64. The ids of a bag are
    pooled by sum, mean or maximum; an empty bag is zero, and `padding_idx` is left out of bags.
    `weight` and `table` as for [`Embedding`][outsize.nn.Embedding].

    Args:
        num_embeddings: Number of ids.
        embedding_dim: Width of a vector.
        max_norm: Refused: ids share parameters.
        norm_type: Of `max_norm`.
        scale_grad_by_freq: Refused: ids share parameters.
        mode: "sum", "mean" or "max".
        sparse: Sparse gradients, for method "full" only.
        _weight: Trained rows to start from, as `from_pretrained` gives them.
        include_last_offset: Whether offsets have one element more, the end of the last bag.
        padding_idx: An id that is left out of every bag; counted from the end if negative.
        device: Device of the table.
        dtype: Type of its parameters.
        method: A key of `outsize.TABLES`; with trained rows also "pq", product quantization.
        max_params: The most trainable numbers.
        max_bytes: The most bytes, index maps included.
        init: The distribution of initial vectors. By default that of `nn.EmbeddingBag`, normal with
            standard deviation 1; `outsize.Init()` is the smaller one of the library's tables.
        seed: Seed of everything random; by default drawn from torch's global generator, so that
            `torch.manual_seed` decides it.
        name: Name of the table in errors.
        **options: The method's own settings, such as `columns`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Pooling = "mean",
        sparse: bool = False,
        _weight: Float[Tensor, "..."] | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
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
            "outsize.nn.EmbeddingBag", max_norm, scale_grad_by_freq, sparse and method != "full"
        )
        table = make_table(
            method,
            spec_of(name, num_embeddings, embedding_dim, init, dtype, _weight),
            Budget(max_params, max_bytes),
            rows=_weight,
            ignored=resolve_padding(padding_idx, num_embeddings),
            device=device,
            seed=seed,
            options={**options, "sparse": True} if sparse else options,
        )
        self._hold(table, mode, include_last_offset, padding_idx)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Float[Tensor, "..."],
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Pooling = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        method: str = "pq",
        **settings: Any,
    ) -> EmbeddingBag:
        """Compress trained rows.

        Args:
            embeddings: The rows, `(num_embeddings, embedding_dim)`.
            freeze: Leave the parameters untrained, torch's default.
            max_norm: As for the class.
            norm_type: As for the class.
            scale_grad_by_freq: As for the class.
            mode: As for the class.
            sparse: As for the class.
            include_last_offset: As for the class.
            padding_idx: As for the class.
            method: "pq" for product quantization, or a key of `outsize.TABLES`; see
                `outsize.EmbeddingTable.fit_rows` for how the others start from rows.
            **settings: The budget, `seed`, `name` and options of the method, as for the class.
        """
        require_matrix(embeddings)
        num_embeddings, embedding_dim = embeddings.shape
        module = cls(
            num_embeddings,
            embedding_dim,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            embeddings,
            include_last_offset,
            padding_idx,
            method=method,
            **settings,
        )
        module.table.requires_grad_(not freeze)
        return module

    @classmethod
    def from_table(
        cls,
        table: EmbeddingTable,
        mode: Pooling = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """A module over an existing table, which other modules may share.

        Args:
            table: The table.
            mode: As for the class.
            include_last_offset: As for the class.
            padding_idx: As for the class.
        """
        module = cls.__new__(cls)
        module._hold(table, mode, include_last_offset, padding_idx)
        return module

    def forward(
        self,
        input: Integer[Tensor, "..."],
        offsets: Integer[Tensor, " bags"] | None = None,
        per_sample_weights: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch dim"]:
        """Pool bags of ids.

        Args:
            input: `(bags, length)` for bags of one length, or flat ids with `offsets`.
            offsets: Start of each bag in flat ids.
            per_sample_weights: One factor per id, in the shape of `input`; for mode "sum" only.
        """
        starts = None if offsets is None else ids_of(offsets, "offsets")
        _require_bags(input, starts, self.include_last_offset)
        pooled = self.table.bag(
            ids_of(input), starts, per_sample_weights, self.mode, self.padding_idx
        )
        # The end of the last bag starts a bag that nobody asked for.
        return pooled[:-1] if starts is not None and self.include_last_offset else pooled

    @torch.no_grad()
    def materialize(self) -> nn.EmbeddingBag:
        """The equivalent trainable `nn.EmbeddingBag`, with one row per id."""
        bag: nn.EmbeddingBag = nn.EmbeddingBag.from_pretrained(
            self.table.materialize().weight.detach(),
            freeze=False,
            mode=self.mode,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )
        return bag

    def extra_repr(self) -> str:  # noqa: D102
        return f"{super().extra_repr()}, mode={self.mode!r}"

    def _hold(
        self,
        table: EmbeddingTable,
        mode: Pooling,
        include_last_offset: bool,
        padding_idx: int | None,
    ) -> None:
        if mode not in POOLINGS:
            raise ConfigError(f"mode must be one of {', '.join(POOLINGS)}, but got {mode!r}")
        super().__init__(table, padding_idx)
        self.mode = mode
        self.include_last_offset = include_last_offset


def _require_bags(
    ids: Integer[Tensor, "..."], offsets: Integer[Tensor, "..."] | None, with_last: bool
) -> None:
    """Raise unless ids are flat with offsets, or a matrix without them, as torch asks."""
    if ids.dim() == 1 and offsets is None:
        raise DataError("flat ids need offsets, the start of each bag; or give ids as (bags, 1)")
    if ids.dim() == 2 and offsets is not None:
        raise DataError("ids of shape (bags, length) are bags already: give no offsets")
    if with_last and offsets is not None and offsets.numel() == 0:
        raise DataError(
            "with include_last_offset, offsets end with the number of ids, but are empty"
        )
