"""N ranks with batch B equal one process with batch N·B, with real ranks over gloo."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launching import RUN, curve, final_weights, launch, pid_of_rank, train_and_kill_a_rank
from processes import Ranks, Started, run, run_ranks

import outsize
from outsize.errors import ConfigError
from outsize.training import export_run, load_config, train
from outsize.training.run_folder import RunFolder


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(num_train=505))
    return path


def test_collectives_metrics_and_replicas():
    script = Path(__file__).parent.parent / "ranks" / "check_collectives.py"
    code, output, errors = run_ranks(3, script)
    assert code == 0, errors
    assert output.count("has passed") == 3


def test_replicas_of_a_table_stay_equal_when_it_is_reclustered():
    script = Path(__file__).parent.parent / "ranks" / "check_recluster.py"
    code, output, errors = run_ranks(2, script)
    assert code == 0, errors
    assert output.count("has passed") == 2


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (2, []),
        # 505 = 10 batches of 48 and 25 examples; with 3 ranks that is 8, 8 and 9.
        (3, ["embeddings.kind=tables", "optimizer.kind=sgd", "optimizer.learning_rate=0.1"]),
    ],
)
def test_n_ranks_equal_one_process_with_n_times_the_batch(run_file, tmp_path, ranks, settings):
    extra = [word for setting in settings for word in ("--set", setting)]
    one, many = tmp_path / "one", tmp_path / "many"
    alone = run("-m", "outsize", "train", run_file, "--out", one,
                "--set", f"train.batch_size={16 * ranks}", *extra)  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    code, output, errors = run_ranks(ranks, "-m", "outsize", "train", run_file, "--out", many,
                               "--set", "train.batch_size=16", "--json", *extra)  # fmt: skip
    assert code == 0, errors
    assert json.loads(output)["stopped"] == "finished"  # one object, from one rank
    lines = zip(RunFolder(one).metrics(), RunFolder(many).metrics(), strict=True)
    for expected, found in lines:
        assert expected.keys() == found.keys()
        assert expected.pop("split") == found.pop("split")
        for name in expected.keys() - {"examples_per_s", "train_s"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    weights = [final_weights(folder) for folder in (one, many)]
    for (name, expected), (other, found) in zip(*(sorted(w.items()) for w in weights), strict=True):
        assert name == other
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_rank_without_data_takes_part(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(num_train=49))  # the last batch has one example for three ranks
    code, output, errors = run_ranks(3, "-m", "outsize", "train", path, "--out", tmp_path / "run",
                               "--set", "train.batch_size=16", "--json")  # fmt: skip
    assert code == 0, errors
    assert json.loads(output)["steps"] == 4


def test_a_run_lets_go_of_the_process_group_before_it_is_destroyed():
    script = Path(__file__).parent.parent / "ranks" / "check_release.py"
    examples = Path(__file__).parents[2] / "examples"
    code, output, errors = run_ranks(2, script, examples)
    assert code == 0, errors
    assert sorted(output.split()[1::3]) == ["0", "1"]


def test_ranks_stopped_by_a_signal_resume_to_the_same_end(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(num_train=6_000))
    words = ["-m", "outsize", "train", path, "--set", "train.batch_size=16"]
    code, _, errors = run_ranks(2, *words, "--out", tmp_path / "whole")
    assert code == 0, errors
    process = Ranks(2, [*words, "--out", tmp_path / "stopped"])
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    while process.poll() is None:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= 10:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0
    code, _, errors = run_ranks(2, *words, "--out", tmp_path / "stopped", "--resume")
    assert code == 0, errors
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")


def test_a_rank_that_waits_for_others_to_join_ends_when_it_is_told_to(run_file, tmp_path):
    others = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    names = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(others.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}  # fmt: skip
    before = others.num_keys()
    words = ["-m", "outsize", "train", run_file, "--out", tmp_path / "run"]
    process = Started(words, env={**os.environ, **names})
    while others.num_keys() == before:  # it has not told the others its address yet
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=60) == -signal.SIGTERM


def test_a_run_goes_on_with_another_number_of_ranks(run_file, tmp_path):
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    train = ["-m", "outsize", "train", run_file]
    alone = run(*train, "--out", whole, "--set", "train.batch_size=48")
    assert alone.returncode == 0, alone.stderr
    # Three ranks begin and leave a checkpoint in the middle of the first epoch, of 11 batches.
    code, _, errors = run_ranks(3, "-m", "outsize", "train", run_file, "--out", moved,
                          "--set", "train.batch_size=16", "--set", "checkpoint.keep=9")  # fmt: skip
    assert code == 0, errors
    for checkpoint in sorted((moved / "checkpoint").iterdir())[1:]:
        shutil.rmtree(checkpoint)
    assert export_run(moved, tmp_path / "exported")["step"] == 6
    resume = ["--out", moved, "--resume", "--set"]
    refused = run(*train, *resume, "train.batch_size=16")
    assert refused.returncode == 2
    assert (
        "this run was saved with batches of 48 (3 ranks of 16), and 1 rank of 16 would make 16: "
        "set train.batch_size=48"
    ) in refused.stderr
    code, _, errors = run_ranks(
        2, "-m", "outsize", "train", run_file, *resume, "train.batch_size=24"
    )
    assert code == 0, errors
    for expected, found in zip(curve(whole), curve(moved), strict=True):
        assert found[:2] == expected[:2]
        assert found[2] == pytest.approx(expected[2], rel=1e-4)
    assert curve(whole)[-1][0] == 22
    before, after = final_weights(whole), final_weights(moved)
    assert before.keys() == after.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-5)


def test_a_killed_rank_is_replaced_and_the_run_ends_as_if_it_had_lived(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(num_train=5_000))
    words = ["-m", "outsize", "train", path, "--set", "train.batch_size=16", "--set",
             "train.epochs=1", "--set", "train.validate_every=40"]  # fmt: skip
    errors = train_and_kill_a_rank(words, tmp_path / "whole", tmp_path / "killed")
    assert "torchrun restarted the ranks: going on with the run in" in errors
    assert "lost the other ranks" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("begun", [False, True])
def test_a_restart_before_the_first_checkpoint_begins_again(run_file, tmp_path, monkeypatch, begun):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml.partial").write_text("cut sho")
    if begun:
        RunFolder(out).begin(load_config(run_file))
        RunFolder(out).log.append({"step": 4, "split": "train", "loss": 9.0})
        (out / "checkpoint" / "step-0000000006.partial").mkdir(parents=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    restarted = train(run_file, out, quiet=True)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert restarted.steps == train(run_file, tmp_path / "fresh", quiet=True).steps
    assert curve(out) == curve(tmp_path / "fresh")
    with pytest.raises(ConfigError, match="already holds a run"):
        train(run_file, out, quiet=True)


def test_a_restart_does_not_take_over_another_run(run_file, tmp_path, monkeypatch):
    RunFolder(tmp_path / "run").begin(load_config(run_file, ["seed=5"]))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(ConfigError, match="seed was 5 and is now 0"):
        train(run_file, tmp_path / "run", quiet=True)


@pytest.mark.slow
def test_rows_are_saved_by_four_ranks_and_loaded_by_three_and_by_one(tmp_path):
    script = Path(__file__).parent.parent / "ranks" / "check_row_files.py"
    for ranks, task in ((4, "save"), (3, "load")):
        code, output, errors = run_ranks(ranks, script, task, tmp_path)
        assert code == 0, errors
        assert output.count("has passed") == ranks
    for folder, num_rows in (("rows", 1003), ("larger", 1010), ("replicas", 1010)):
        store = outsize.LocalStore([outsize.TableSpec("wide", num_rows, 4),
                                    outsize.TableSpec("thin", 21, 2)], seed=1)  # fmt: skip
        fresh = store.read(torch.arange(1003, num_rows), "wide")
        outsize.RowAdagrad(store)
        outsize.load_rows(store, tmp_path / folder)
        rows = torch.arange(1003)
        assert torch.equal(store.read(rows, "wide"), rows.unsqueeze(1).expand(-1, 4).float())
        assert torch.equal(store.clocks[:1003], rows.int() + 1)
        assert torch.equal(store.state(0)["sum"][:1003], rows.unsqueeze(1) / 8)
        assert torch.equal(store.read(torch.arange(1003, num_rows), "wide"), fresh)
        assert not store.clocks[1003:num_rows].any()


def test_ranks_that_lose_another_say_so_in_one_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(num_train=600_000))
    process = launch(2, "-m", "outsize", "train", path, "--set", "train.batch_size=16",
                     "--out", tmp_path / "run")  # fmt: skip
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(pid_of_rank(process.pid, 0), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    (line,) = [line for line in errors.splitlines() if line.startswith("outsize: ")]
    assert line.startswith("outsize: rank 1: lost the other ranks (")
    assert line.endswith("or start again with --resume")
