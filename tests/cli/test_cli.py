import json
import os
import subprocess
import sys

import pytest

import outsize
from outsize.cli import COMMANDS, main
from outsize.demo import STOPS

SMALL = """
[data]
num_train = 600
num_validation = 200
num_test = 200
largest_vocabulary = 100
[train]
batch_size = 256
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(SMALL)
    return path


def call(capfd, *words):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    out, err = capfd.readouterr()
    return caught.value.code, out, err


def test_train_writes_a_run_folder(capfd, run_file, tmp_path):
    code, out, err = call(capfd, "train", run_file, "--out", tmp_path / "run")
    assert (code, out) == (0, "")
    assert "report.html" in err
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {"config.toml", "metrics.jsonl", "checkpoint", "report.html"}


def test_json_is_exactly_one_object_on_standard_output(capfd, run_file, tmp_path):
    code, out, err = call(capfd, "train", run_file, "--out", tmp_path / "run", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["steps"] == 3
    assert result["test"]["loss"] > 0
    assert result["memory"]["total_bytes"] > 0


def test_overrides_are_applied(capfd, run_file, tmp_path):
    out = tmp_path / "run"
    call(capfd, "train", run_file, "--out", out, "--set", "train.steps=1", "--set", "seed=5")
    config = outsize.training.load_config(out / "config.toml")
    assert (config.train.steps, config.seed) == (1, 5)


MISTAKES = {
    "missing file": (
        ["train", "nowhere.toml"],
        "nowhere.toml: no such file; `outsize init DATA` writes a run file",
    ),
    "nearly a file": (["train", "rum.toml"], "rum.toml: no such file. Did you mean 'run.toml'?"),
    "a file for a folder": (["train", "RUN", "--out", "RUN"], "choose another folder with --out"),
    "unknown key": (["train", "RUN", "--set", "train.stepz=1"], "Did you mean 'steps'?"),
    "wrong type": (["train", "RUN", "--set", "train.steps=many"], "train.steps must be an integer"),
    "malformed setting": (["train", "RUN", "--set", "train"], "must look like section.key=value"),
    "nothing to resume": (["train", "RUN", "--resume", "--out", "x"], "holds no run to resume"),
    "unknown command": (["trian"], "No such command 'trian'. Did you mean 'train'?"),
    "nearly a benchmark": (["bench", "row"], "Did you mean 'rows'?"),
    "run files to compare": (["compare", "RUN", "RUN"], "is a run file"),
    "no runs to compare": (["compare", "x", "y"], "x holds no run"),
    "unknown option": (["train", "RUN", "--otu", "x"], "--otu"),
    "missing argument": (["train"], "RUN.toml': outsize train --help shows how"),
    "nothing to export": (["export", "x", "y"], "name a folder that outsize train has written"),
    "nowhere to export to": (["export", "x"], "DIR"),
    "unknown method": (["compare", "RUN", "--tables", "hsh"], "Did you mean 'hash'?"),
    "only the baseline": (["compare", "RUN", "--tables", "full"], "names none to compare"),
    "no budgets": (["compare", "RUN", "--budgets", ","], "--budgets is empty"),
    "budget in words": (["compare", "RUN", "--budgets", "64,many"], "but got 'many'"),
    "budget of nothing": (["compare", "RUN", "--budgets", "0"], "a budget must be >= 1"),
    "unknown unit": (["compare", "RUN", "--unit", "miles"], "must be parameters or bytes"),
    "no seeds": (["compare", "RUN", "--seeds", "0"], "--seeds must be >= 1"),
    "workers below none": (["compare", "RUN", "--workers", "-1"], "--workers must be >= 0"),
    "unknown benchmark": (["bench", "nothing"], "no benchmark 'nothing'"),
    "benchmark that moved": (["bench", "recluster"], "run: python -m benchmarks.speed.recluster"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_mistake_is_one_line_and_exit_code_2(
    capfd, run_file, tmp_path, monkeypatch, name, as_json
):
    monkeypatch.chdir(tmp_path)
    words, expected = MISTAKES[name]
    words = [run_file if word == "RUN" else word for word in words]
    code, out, err = call(capfd, *words, *(["--json"] if as_json else []))
    assert code == 2
    assert expected in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    if as_json:
        assert expected in json.loads(out)["error"]
    else:
        assert out == ""


def test_export_writes_a_model_that_loads(capfd, run_file, tmp_path):
    call(capfd, "train", run_file, "--out", tmp_path / "run")
    code, out, err = call(capfd, "export", tmp_path / "run", tmp_path / "one")
    assert (code, out) == (0, "")
    assert err.startswith("dlrm of the best step 3, ")
    code, out, err = call(capfd, "export", tmp_path / "run", tmp_path / "two", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["out"], result["step"]) == (str(tmp_path / "two"), 3)
    size = (tmp_path / "one" / "model.safetensors").stat().st_size
    assert result["bytes"] == size > 4 * result["num_parameters"]
    assert outsize.load_exported(tmp_path / "two").num_dense == 13
    code, _, err = call(capfd, "export", tmp_path / "run", tmp_path / "one")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "is not empty" in err


def test_a_folder_that_holds_a_run_is_not_overwritten(capfd, run_file, tmp_path):
    call(capfd, "train", run_file, "--out", tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    code, _, err = call(capfd, "train", run_file, "--out", tmp_path / "run")
    assert code == 2
    assert "already holds a run" in err
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_a_mistake_leaves_no_folder_behind(capfd, run_file, tmp_path):
    out = tmp_path / "run"
    code, _, _ = call(capfd, "train", run_file, "--out", out, "--set", "train.device=toaster")
    assert code == 2
    assert not out.exists()


def test_our_own_defects_keep_their_traceback(monkeypatch):
    def broken() -> dict:
        raise ZeroDivisionError("ours")

    monkeypatch.setitem(COMMANDS, "broken", broken)
    with pytest.raises(ZeroDivisionError):
        main(["broken"])


def test_no_command_prints_the_help(capfd):
    code, out, _ = call(capfd)
    assert code == 0
    assert "train" in out


def test_the_version_is_printed(capfd):
    assert call(capfd, "--version")[:2] == (0, f"{outsize.__version__}\n")


def test_every_command_has_help(capfd):
    for name in COMMANDS:
        code, out, _ = call(capfd, name, "--help")
        assert code == 0
        assert name in out


def test_the_demo_takes_the_tour(capfd, monkeypatch, tmp_path):
    monkeypatch.delitem(STOPS, "cache")  # has a test of its own, and takes processes of its own
    monkeypatch.delitem(STOPS, "search")  # has a test of its own
    code, out, err = call(capfd, "demo", "--quick", "--out", tmp_path / "tour")
    assert (code, out) == (0, "")
    assert "best reachable (Bayes)" in err
    for page in ("click/report.html", "compress/compare.html"):
        assert (tmp_path / "tour" / page).exists()
    code, out, _ = call(capfd, "demo", "--quick", "--out", tmp_path / "tour", "--json")
    assert json.loads(out)["click"]["steps"] == 10


def test_the_demo_does_not_touch_a_folder_of_other_things(capfd, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    code, _, err = call(capfd, "demo", "--quick", "--out", tmp_path)
    assert code == 2
    assert "thesis.tex" in err
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("stop", STOPS)
def test_the_demo_deletes_no_folder_that_is_only_named_as_its_own(capfd, tmp_path, stop):
    (tmp_path / stop).mkdir()
    (tmp_path / stop / "thesis.txt").write_text("precious")
    code, _, err = call(capfd, "demo", "--quick", "--out", tmp_path)
    assert code == 2
    assert stop in err
    assert "--out" in err
    assert len(err.splitlines()) == 1
    assert (tmp_path / stop / "thesis.txt").read_text() == "precious"


def test_the_demo_replaces_a_tour_of_its_own_and_nothing_else(capfd, monkeypatch, tmp_path):
    for name in list(STOPS):
        monkeypatch.setitem(STOPS, name, lambda out, quick, console: out.mkdir() or {})
    out = tmp_path / "tour"
    assert call(capfd, "demo", "--out", out)[0] == 0
    (out / "click" / "old.txt").write_text("of the tour before")
    assert call(capfd, "demo", "--out", out)[0] == 0
    assert {path.name for path in out.iterdir()} == {*STOPS, ".outsize-demo"}
    assert list((out / "click").iterdir()) == []
    (out / "thesis.tex").write_text("precious")
    code, _, err = call(capfd, "demo", "--out", out)
    assert (code, "thesis.tex" in err) == (2, True)
    assert {path.name for path in out.iterdir()} == {*STOPS, ".outsize-demo", "thesis.tex"}


def test_compare_writes_tables_and_a_page(capfd, run_file, tmp_path):
    words = ["compare", run_file, "--tables", "hash", "--budgets", "64", "--seeds", "1",
             "--workers", "0", "--out", tmp_path / "out"]  # fmt: skip
    code, out, err = call(capfd, *words)
    assert (code, out) == (0, "")
    for word in ("1/2  full-0  loss", "at 64 parameters per table: hash", "compare.html"):
        assert word in err
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"cells", "compare.csv", "compare.json", "compare.md", "compare.html"}
    code, out, err = call(capfd, *words, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "out" / "compare.json").read_text())


def test_bench_writes_its_results(capfd, tmp_path):
    code, out, _ = call(capfd, "bench", "dlrm", "--quick", "--json", "--out", tmp_path)
    assert code == 0
    result = json.loads(out)
    assert {row["optimizer"] for row in result["speed"]} >= {"sgd"}
    assert result["rows"][0]["share"] < 1
    (page,) = tmp_path.glob("dlrm-*.md")
    assert "Examples per second" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text()) == result


@pytest.mark.parametrize("words", [("init", "clicks.csv", "--json"), ("--help",)])
def test_output_that_nobody_reads_ends_a_command_in_silence(tmp_path, words):
    rows = [f"{i % 2},{i % 7}" for i in range(60)]
    (tmp_path / "clicks.csv").write_text("\n".join(["label,city", *rows]) + "\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "outsize", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(writer)
    assert done.returncode == 1
    assert "pipe" not in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_importing_alone_loads_the_standard_library_only():
    code = (
        "import sys; before = set(sys.modules); import outsize; "
        "roots = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(roots - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['outsize']"


def test_importing_loads_nothing_heavy():
    heavy = ["matplotlib", "numba", "triton", "faiss", "transformers", "typer", "rich"]
    code = (
        f"import sys, outsize; outsize.LocalStore; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    for name in outsize.__all__:
        assert getattr(outsize, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = outsize.nonsense


def _stopped_while_it_imports():
    try:
        raise KeyboardInterrupt
    finally:
        raise AttributeError("a module that is imported in part")


def _stopped_on_a_full_disk():
    try:
        raise KeyboardInterrupt
    finally:
        raise outsize.errors.WriteError("the disk is full")


def _raises(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("name", "command", "line", "expected"),
    [
        ("plan", _raises(KeyboardInterrupt), "stopped", 130),
        ("train", _stopped_while_it_imports, "stopped; a run that was saved goes on with", 130),
        ("compare", _raises(KeyboardInterrupt), "stopped; the same command goes on", 130),
        ("train", _stopped_on_a_full_disk, "outsize: the disk is full", 2),
    ],
)
def test_ctrl_c_is_one_line(name, command, line, expected, monkeypatch, capfd):
    monkeypatch.setitem(COMMANDS, name, command)
    code, out, err = call(capfd, name)
    assert (code, out) == (expected, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_defect_keeps_its_traceback(monkeypatch):
    monkeypatch.setitem(COMMANDS, "plan", _raises(AttributeError("a defect")))
    with pytest.raises(AttributeError, match="a defect"):
        main(["plan"])
