"""The table of probed clusterings, and the settings of its cells."""

import pytest

from benchmarks.cce.probes import VARIANTS, settings_of, table
from outsize.training.config import TrainConfig


def cell(variant, seed, auc, **more):
    nothing = {"cpu_s": 2.0, "peak_bytes": 3_000_000, "probe_visits": 0, "probe_bytes": 0,
               "rates": [], "kept": []}  # fmt: skip
    return {"variant": variant, "budget": 64, "seed": seed, "auc": auc, **nothing, **more}


@pytest.mark.parametrize("planted", [True, False])
def test_the_table_has_means_ranges_and_how_many_probes_were_used(planted):
    probed = {"probe_visits": 1_500, "probe_bytes": 10_000, "rates": [0.1, 0.03]}
    rows = [
        cell("no probe", 0, 0.7), cell("no probe", 1, 0.8),
        cell("probe = true", 0, 0.9, kept=[True, False], **probed),
        cell("probe = true", 1, 0.8, kept=[True, True], **probed),
    ]  # fmt: skip
    text = table(rows, ["no probe", "probe = true"], [64], planted)
    assert ("planted clusters" in text) == planted
    assert "| no probe | 0.7500 (0.7000 to 0.8000) | 2 | 3 | 0 | 0.00 |  |  |" in text
    assert (
        "| probe = true | 0.8500 (0.8000 to 0.9000) | 2 | 3 | 1,500 | 0.01 | 0.03 0.1 | 3 of 4 |"
    ) in text


def test_a_control_trains_twice_as_long():
    short = settings_of("no probe, twice as long", 64, 1, TrainConfig(epochs=1, steps=120))
    assert short[-2:] == ["train.epochs=2", "train.steps=240"]
    assert settings_of("no probe, twice as long", 64, 1, TrainConfig(epochs=5))[-1] == (
        "train.epochs=10"
    )
    assert settings_of("probe = true", 64, 1, TrainConfig())[-1] == (
        "embeddings.recluster.probe=true"
    )
    assert "probe = true" in VARIANTS
