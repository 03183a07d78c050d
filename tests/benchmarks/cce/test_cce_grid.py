"""Grids train each cell once, in parts if asked, and schedules are what their names say."""

import argparse
from fractions import Fraction

import pytest

from benchmarks.cce.grid import grid_parser, train_grid, write_grid
from benchmarks.cce.schedules import ONE_EPOCH, name_of, schedules_of, settings_of, table
from benchmarks.cce.variant_grid import Variant, VariantGrid, variant_table
from outsize.training.tables_config import ReclusterConfig

CELLS = [{"variant": name, "budget": 64, "seed": seed} for seed in (0, 1) for name in ("a", "b")]


def test_a_finished_cell_is_not_trained_again(tmp_path):
    trained, said = [], []

    def one(cell):
        trained.append(cell)
        return {"auc": 0.5 + cell["seed"], "loss": 1.0}

    def rows(part=(1, 1)):
        return train_grid(CELLS, one, tmp_path, part, said.append)

    assert [row["seed"] for row in rows((2, 4))] == [0]
    first = rows()
    assert first == rows()
    assert trained == [CELLS[1], CELLS[0], *CELLS[2:]]
    assert first[3] == {**CELLS[3], "auc": 1.5, "loss": 1.0}
    assert said[0] == "2/4  b, 64, 0: AUC 0.5000"


def test_a_cell_that_fails_leaves_nothing(tmp_path):
    def fail(cell):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train_grid(CELLS, fail, tmp_path / "work", say=print)
    assert not (tmp_path / "work").exists()


def test_a_part_of_a_grid_writes_no_page(tmp_path):
    parser = grid_parser("", "name", "64")
    whole = parser.parse_args(["run.toml", "--out", str(tmp_path)])
    part = parser.parse_args(["run.toml", "--out", str(tmp_path), "--part", "2/3"])
    assert part.part == (2, 3)
    for arguments in (part, whole):
        assert not list(tmp_path.iterdir())
        write_grid(
            arguments, "grid", "Title", "benchmarks.cce.schedules", [], lambda rows: "body\n"
        )
    assert {path.name for path in tmp_path.iterdir()} == {"grid-cpu.json", "grid-cpu.md"}
    with pytest.raises(SystemExit):
        parser.parse_args(["run.toml", "--part", "4/3"])


def test_a_table_has_the_mean_and_the_range_of_the_seeds():
    rows = [{**cell, "auc": 0.5 + cell["seed"] / 10, "loss": 1.0} for cell in CELLS]
    page = variant_table("A note.", rows)
    assert "| a | 1.0000 (1.0000 to 1.0000) | 0.5500 (0.5000 to 0.6000) |" in page
    assert "the seeds 0, 1;" in page
    assert "A note." in page


@pytest.mark.parametrize("num_epochs", [1, 10])
def test_a_schedule_ends_when_its_name_says(num_epochs):
    num_steps = 480
    for number, interval in schedules_of(num_epochs):
        settings = dict(word.split("=") for word in settings_of((number, interval), num_steps))
        names = {name.rpartition(".")[2]: float(value) for name, value in settings.items()}
        config = ReclusterConfig(
            count=int(names["count"]), every=int(names["every"]), rest=names["rest"]
        )
        steps = config.steps(num_epochs * num_steps, num_steps)
        assert len(steps) == number
        assert steps[-1] == pytest.approx(float(number * interval) * num_steps, abs=number)


def test_the_page_of_schedules_names_planted_clusters():
    rows = [
        {"variant": name_of(schedule), "budget": 64, "seed": 0, "loss": 0.4, "auc": 0.8}
        for schedule in ONE_EPOCH
    ]
    assert "planted clusters" in table(1, True, rows)
    page = table(1, False, rows)
    assert "planted" not in page
    assert f"| 2 | {Fraction(1, 3)} | {Fraction(2, 3)} |" in page


def test_options_have_the_documented_defaults():
    found = grid_parser("", "name", "64").parse_args(["run.toml"])
    assert isinstance(found, argparse.Namespace)
    assert (found.seeds, found.part, str(found.work)) == (3, (1, 1), "runs/name")


def test_a_grid_of_variants_trains_every_cell_and_writes_its_page(tmp_path, monkeypatch):
    variants = {"a": Variant("cce"), "b": Variant("hash")}
    grid = VariantGrid("benchmarks.cce.some_idea", "some-idea", "Some idea", "", "64", variants)
    words = ["some", "dir/run.toml", "--seeds", "2", "--budgets", "64,128", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*words, "--work", str(tmp_path / "work")])
    cells = []

    def one(cell):
        cells.append((cell["variant"], cell["budget"], cell["seed"]))
        return {"loss": 0.5, "auc": 0.7}

    grid.run("About it.", one)
    assert len(set(cells)) == len(cells) == 8
    (page,) = tmp_path.glob("some-idea-run-*.md")
    assert page.read_text().startswith(
        "# Some idea: run.toml\n\n`python -m benchmarks.cce.some_idea"
    )
