"""README, docs, examples and shipped run files: what is written is run."""

import json
import re
from pathlib import Path

import processes
import pytest
from written_commands import copy_examples, small

import outsize
from outsize.training import load_config
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, read_toml

REPOSITORY = Path(__file__).parent.parent
PAGES = ["README.md", *(str(p.relative_to(REPOSITORY)) for p in REPOSITORY.glob("docs/*.md"))]
WITH_A_MODULE = ("docs/extending.md",)  # its files belong together: see test_extending.py
NEEDS_A_MODEL = ("docs/text.md",)  # run on a small one: see test_sentence_transformers_trainer.py
GOES_ON = {"docs/predict.md": "python"}  # page → a language whose blocks go on from the first
RUN_FILES = [*REPOSITORY.glob("examples/*.toml"), *REPOSITORY.glob("src/outsize/**/*.toml")]


def blocks(language):
    """(page and number, text) of every fenced block in a language."""
    found = []
    for page in PAGES:
        if page in WITH_A_MODULE and language != "python":
            continue
        if page in NEEDS_A_MODEL:
            continue
        text = (REPOSITORY / page).read_text()
        written = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        if GOES_ON.get(page) == language:
            written = ["".join(written)]
        for number, block in enumerate(written):
            found.append(pytest.param(block, id=f"{page}-{number}"))
    return found


@pytest.fixture
def clone(tmp_path):
    """A folder where README's relative paths exist, and nothing of ours is overwritten."""
    copy_examples(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", blocks("python"))
def test_every_python_block_runs(code, clone):
    done = processes.run("-W", "error", "-c", code, cwd=clone)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks("toml"))
def test_every_run_file_in_the_docs_is_valid(block, tmp_path):
    (tmp_path / "run.toml").write_text(block)
    assert isinstance(load_config(tmp_path / "run.toml"), RunConfig)


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.name)
def test_every_shipped_run_file_trains(path):
    result = outsize.train(load_config(path, small(path)), quiet=True)
    assert result.steps == 3
    (quality, *_) = [name for name in ("auc", "accuracy", "ndcg@10") if name in result.test]
    assert result.test[quality] > 0


def test_the_example_of_predicting_scores_raw_rows_in_a_fresh_process():
    path = REPOSITORY / "examples" / "predict.py"
    done = processes.run("-W", "error", path)
    assert done.returncode == 0, done.stderr
    auc, scores = done.stdout.splitlines()
    assert float(auc.split()[-1]) > 0.6
    risky, other = json.loads(scores)
    assert risky > other + 0.1


OWN_TESTS = ("predict.py", "sentence_transformers_trainer.py")  # here, and in integrations
LOOPS = [path for path in REPOSITORY.glob("examples/*.py") if path.name not in OWN_TESTS]


@pytest.mark.parametrize("path", LOOPS, ids=lambda path: path.name)
def test_every_example_runs(path):
    done = processes.run("-W", "error", path)
    assert done.returncode == 0, done.stderr
    first, last = re.findall(r"loss ([\d.]+)", done.stdout)[::3]
    assert float(last) < float(first)


def test_the_message_in_the_docs_is_the_one_that_is_printed():
    page = (REPOSITORY / "docs" / "run-files.md").read_text()
    with pytest.raises(outsize.OutsizeError) as caught:
        decode(RunConfig, {"train": {"batch_siz": 1}}, "run.toml")
    assert f"outsize: {caught.value}" in page


def test_the_version_is_the_same_everywhere():
    assert read_toml(REPOSITORY / "pyproject.toml")["project"]["version"] == outsize.__version__


def test_every_dependency_of_the_tests_is_pinned():
    project = read_toml(REPOSITORY / "pyproject.toml")["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.match(r"[\w\-]+", requirement)[0].lower() for requirement in wanted}
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
    }
    assert names <= pinned
