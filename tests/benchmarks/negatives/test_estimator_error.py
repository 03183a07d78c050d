"""The benchmark of estimators says which has the smaller error."""

import pytest
import torch

from benchmarks.negatives import estimator_error
from outsize.negatives import ESTIMATORS


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_errors_are_those_of_the_estimators():
    problem = estimator_error.make_problem(256, 16)
    exact = estimator_error.exact_gradients(*problem, 20.0)
    rows = [
        {"beta": 20.0, "k": 4, "estimator": name}
        | estimator_error.estimator_errors(*problem, 20.0, 4, name, exact, 12)
        for name in ESTIMATORS
    ]
    errors = {row["estimator"]: row["of_items"] for row in rows}
    assert errors["shared-systematic"] < 0.8 * errors["weighted"] < errors["sampled"]
    assert next(r for r in rows if r["estimator"] == "control-variate")["of_queries"] < 1e-6
    results = {"rows": rows, "items": 256, "batch": 16, "turns": 12}
    assert len(estimator_error.table(results).splitlines()) == 5
    assert torch.equal(problem[0], estimator_error.make_problem(256, 16)[0])
