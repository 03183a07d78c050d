"""Notebooks are valid, have no outputs, and run from the first cell to the last."""

import json
import re
from pathlib import Path

import matplotlib
import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
SMALL = {
    "compress_a_torch_model": "num_train, num_ids, epochs, factors = 2_000, 2_000, 1, [2, 8]",
    "negative_cache_staleness": "num_queries, num_items, epochs, refresh = 60, 40, 1, [0.0, 0.5]",
}
PAGES = sorted(FOLDER.glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text())["cells"]


def test_there_is_a_small_size_for_every_notebook():
    assert {path.stem for path in PAGES} == set(SMALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_notebook_is_of_format_4_and_holds_no_outputs(path):
    page = json.loads(path.read_text())
    assert (page["nbformat"], page["nbformat_minor"]) == (4, 5)
    assert page["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in page["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]{1,64}", each) for each in ids)
    for cell in page["cells"]:
        wanted = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            wanted |= {"execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
        else:
            assert cell["cell_type"] == "markdown"
        assert set(cell) == wanted
        assert all(line.endswith("\n") for line in cell["source"][:-1])
    assert cells(path)[0]["source"][0].startswith("# ")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_notebook_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    matplotlib.use("Agg", force=True)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            is_parameters = "parameters" in cell["metadata"].get("tags", [])
            code = SMALL[path.stem] if is_parameters else "".join(cell["source"])
            exec(compile(code, f"{path.name}, cell {number}", "exec"), names)
    from matplotlib import pyplot

    assert pyplot.get_fignums()
    for figure in map(pyplot.figure, pyplot.get_fignums()):
        assert all(axes.has_data() for axes in figure.axes)
    pyplot.close("all")
    assert capsys.readouterr().out
