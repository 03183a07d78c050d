"""The benchmark of estimators' costs times a step of each."""

import pytest

from benchmarks.negatives import estimator_time
from outsize.negatives import ESTIMATORS


@pytest.mark.usefixtures("unchecked_shapes")
def test_every_estimator_is_timed_at_every_batch():
    results = estimator_time.run(True, lambda line: None)
    assert {row["estimator"] for row in results["rows"]} == set(ESTIMATORS)
    assert all(row["ms"] > 0 for row in results["rows"])
    assert len(estimator_time.table(results).splitlines()) == 5


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_timed_step_is_committed():
    loss = estimator_time.make_loss(estimator_time.nn.Embedding(64, 64), "shared")
    assert loss.cache.num_held == 64
    estimator_time.timed_step(loss, 64, 8)
    assert loss.cache.clock == 1
