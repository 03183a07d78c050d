"""The progress bar: drawn on a terminal only, lines everywhere."""

import io

from rich.console import Console

from outsize.reporting.progress import ProgressBar, counting
from outsize.training.step_progress import TrainingProgress


def shown(is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    with ProgressBar("cells", 4, 1, console) as bar:
        bar.advance(2)
        bar.update(facts="two run")
        bar.say("a [line] of its own")
    return console.file.getvalue()


def test_a_terminal_shows_the_bar_and_lines_above_it():
    text = shown(is_terminal=True)
    assert "cells" in text
    assert "2/4" in text
    assert "two run" in text
    assert "a [line] of its own" in text


def test_elsewhere_only_lines_are_printed_as_they_are():
    assert shown(is_terminal=False) == "a [line] of its own\n"


def test_a_run_shows_losses_and_evaluations_as_lines(capfd):
    with TrainingProgress(20, first_step=5) as progress:
        progress.advance(7)
        progress.log({"split": "train", "step": 7, "loss": 0.5, "examples_per_s": 10.0})
        progress.log({"split": "rows", "step": 7})
        progress.log({"split": "validation", "step": 7, "loss": 0.25})
    assert capfd.readouterr().err.splitlines() == [
        "step       7/20  train       loss 0.5000 · 10 ex/s",
        "step       7/20  validation  loss 0.25000",
    ]


def test_counting_adds_up_what_was_done_and_says_nothing_where_it_is_quiet(monkeypatch, capfd):
    shown = []
    monkeypatch.setattr(ProgressBar, "advance", lambda self, done: shown.append(done))
    with counting("read", 10, quiet=True) as advance:
        advance(4)
        advance(6)
    assert shown == [4, 10]
    assert capfd.readouterr() == ("", "")
