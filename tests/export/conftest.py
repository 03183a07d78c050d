"""Runs on a small log of raw values, and their exports."""

import pytest
from raw_logs import KINDS, ROWS, make_config, write_rows

import outsize
from outsize.training import export_run


class Trained:
    """A run with its export, made when it is first asked for."""

    def __init__(self, folder):
        self.folder = folder
        self.log = write_rows(folder / "log.csv", ROWS)
        self._found = {}

    def __call__(self, kind):
        if kind not in self._found:
            config = make_config(self.log, *KINDS[kind])
            result = outsize.train(config, self.folder / kind, quiet=True)
            export_run(result.out, self.folder / f"{kind}-exported")
            self._found[kind] = (result, config, self.folder / f"{kind}-exported")
        return self._found[kind]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Runs and their exports by kind; tests only read them."""
    return Trained(tmp_path_factory.mktemp("trained"))
