"""Stores shared by real ranks over gloo."""

from pathlib import Path

from processes import run_ranks

SCRIPT = Path(__file__).parent.parent / "ranks" / "check_stores.py"


def test_shards_and_copies_keep_their_promises_on_four_ranks():
    code, output, errors = run_ranks(4, SCRIPT, timeout=300)
    assert code == 0, errors
    assert output.count("has passed") == 4
