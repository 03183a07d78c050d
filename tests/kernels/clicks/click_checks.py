"""Logs whose examples are compared with those that torch makes on the CPU."""

from dataclasses import replace

import torch

from outsize.data.click_data import SPLITS
from outsize.data.synthetic import SyntheticConfig

USUAL = SyntheticConfig(
    num_train=10**9, num_validation=10**6, num_test=10**6, num_dense=3,
    vocabulary=(7, 2048, 2049, 1_000_000, 1), drift=2e4,
)  # fmt: skip
LOGS = [
    USUAL,
    replace(USUAL, skew=1.0, individuality=0.0, num_clusters=1, drift=0.0),
    replace(USUAL, skew=0.0, num_dense=0, vocabulary=(1 << 31,), seed=5),
    replace(USUAL, skew=3.0, num_clusters=1000, individuality=1.0, click_rate=0.02, drift=1e6),
    replace(USUAL, skew=0.6, interactions=1.0, vocabulary=(300_000,) * 9, seed=1 << 62),
]


def assert_examples_are_those_of_torch(made_of, count):
    """Ids are the same, but for few of the largest table, whose ranks have as many bits as rounding
    leaves; other numbers differ by rounding, and labels accordingly.

    Args:
        made_of: Makes a batch, given a log on the CPU, a split, and the first and the last number.
        count: Examples of each log and split.
    """
    for config in LOGS:
        data = config.build()
        for split, first in zip(SPLITS, (10**8 + 77, 0, 5), strict=True):
            expected = data.examples(split, first, first + count)
            found = made_of(data, split, first, first + count)
            assert found.dense.shape == (count, config.num_dense)
            is_same = torch.ones(count, dtype=torch.bool)
            for name, ids in expected.ids.items():
                is_same &= found.ids[name].cpu() == ids
            most = count // 10_000 if max(config.sizes()) > 1_000_000 else 0
            assert (~is_same).sum() <= most
            torch.testing.assert_close(found.dense.cpu(), expected.dense, atol=5e-6, rtol=5e-6)
            pairs = ((found.probability, expected.probability), (found.labels, expected.labels))
            (chance, known), (labels, drawn) = ((a.cpu()[is_same], b[is_same]) for a, b in pairs)
            torch.testing.assert_close(chance, known, atol=1e-5, rtol=1e-4)
            assert (labels != drawn).sum() <= 2
            assert set(found.labels.tolist()) <= {0.0, 1.0}
            assert_alone_as_in_company(made_of, data, split, first, found)


def assert_alone_as_in_company(made_of, data, split, first, batch):
    """An example is the same to the last bit in any batch."""
    for place in (0, batch.num_examples - 1):
        alone = made_of(data, split, first + place, first + place + 1)
        for one, whole in (
            (alone.dense, batch.dense),
            (alone.labels, batch.labels),
            (alone.probability, batch.probability),
        ):
            assert torch.equal(one[0], whole[place])
