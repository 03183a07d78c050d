"""The contract of configurations of embeddings: rows in a store, or tables within a budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from outsize.collection import EmbeddingCollection
from outsize.contracts import RowStore
from outsize.optimizers import RowOptimizer
from outsize.spec import FeatureSpec, TableSpec
from outsize.training.probe_config import BYTES_PER_FLOAT as BYTES_PER_FLOAT
from outsize.training.probe_config import ProbeConfig


class EmbeddingsConfig(ABC):
    """How the embeddings of a run are stored; it builds them.

    Attributes:
        dim: Width of a vector.
        init_std: Standard deviation of fresh values; `None` for the default.
        overlap: Whether rows are exchanged while a step computes.
    """

    dim: int
    init_std: float | None
    overlap: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether each rank stores a part of the rows, instead of all of them."""
        return False

    @property
    def is_asynchronous(self) -> bool:
        """Whether each rank trains at its own pace, all parameters being served."""
        return False

    @property
    def fused(self) -> bool | None:
        """Whether rows are updated in the backward pass; `None` where the device decides."""
        return False

    @property
    def weighs_ids(self) -> bool:
        """Whether clustering needs to know how often ids have occurred."""
        return False

    @property
    def recluster_tolerance(self) -> float:
        """The tolerance of k-means, where tables are reclustered."""
        return 0.0

    @property
    def probe(self) -> ProbeConfig | None:
        """How ids are probed before a clustering; `None` if they are not."""
        return None

    @property
    def table_rate(self) -> float | None:
        """The learning rate of tables, where it differs from that of the dense weights."""
        return None

    @abstractmethod
    def build(
        self, features: Sequence[FeatureSpec], specs: Sequence[TableSpec], seed: int
    ) -> EmbeddingCollection:
        """Build the embeddings of features over these tables."""

    def build_row_optimizer(self, store: RowStore | None, **options: bool) -> RowOptimizer | None:
        """The optimizer of the rows, where they live in a store.

        Args:
            store: The store.
            options: `fused=True` if rows are updated in the backward pass.
        """
        return None

    @abstractmethod
    def num_bytes(self, specs: Sequence[TableSpec], dense_state: int) -> int:
        """Bytes of the embeddings on a rank, with the state of their optimizer.

        Args:
            specs: The tables.
            dense_state: Numbers that the optimizer of the dense weights stores per weight.
        """

    def recluster_steps(self, total_steps: int, steps_per_epoch: int) -> frozenset[int]:
        """The steps after which a run reclusters; none where its tables cannot be."""
        return frozenset()
