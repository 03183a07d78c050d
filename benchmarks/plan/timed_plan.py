"""Plans of runs that differ in their embeddings, made by one process that reads their data once.

    python -m benchmarks.plan.timed_plan OUT RANKS CALIBRATION RUN.toml RUN.toml…

`times` starts it. It writes the summary of each plan into `OUT/plans.json`.
"""

import json
import sys
from pathlib import Path

from outsize.plan import Planner
from outsize.plan.calibration import load_calibration
from outsize.plan.machine import Machine
from outsize.training import RunConfig, load_config


def main(out: str, num_ranks: str, calibration: str, *runs: str) -> None:
    """Plan each run, and write the plans."""
    machine = Machine(calibration=load_calibration(Path(calibration)))
    planners: dict[bool, Planner] = {}
    found = {}

    def planner_of(config: RunConfig) -> Planner:
        """Tables take part in the dense step that a planner measures; stores do not."""
        has_store = config.embeddings.is_shared
        if has_store not in planners or not has_store:
            planners[has_store] = Planner(config, int(num_ranks), machine=machine)
        return planners[has_store]

    for run in runs:
        config = load_config(run)
        found[Path(run).stem] = planner_of(config).plan(config).summary()
        (Path(out) / "plans.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
