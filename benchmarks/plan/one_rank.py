"""One rank of a run that also writes down the largest memory of its process.

python -m benchmarks.plan.one_rank RUN.toml OUT

`predictions` starts it by torchrun, once per rank.
"""

import json
import resource
import sys
from pathlib import Path

from outsize.ranks.collectives import local_rank
from outsize.training import load_config, train


def main(run: str, out: str) -> None:
    """Train, and write `peak-<rank>.json` into the run folder."""
    train(load_config(run), out, quiet=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (Path(out) / f"peak-{local_rank()}.json").write_text(json.dumps(peak))


if __name__ == "__main__":
    main(*sys.argv[1:])
