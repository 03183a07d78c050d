"""Probed clusterings in a run: when they come, what they read, and that they resume exactly."""

import copy
import importlib
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import retrieval_runs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_ranks
from test_loop import Recorder, _Writes, assert_same_tree, final_weights, make_config, make_loop

import outsize
from outsize.checkpoint import latest_checkpoint, load_checkpoint
from outsize.contracts import Bag
from outsize.errors import ConfigError, NonFiniteError
from outsize.tables import Probe
from outsize.training.probe_config import ProbeConfig
from outsize.training.probe_gain import Losses
from outsize.training.probe_rate import choose_rate, tried_ids
from outsize.training.probed_examples import matching_batches, touching
from outsize.training.probing import recluster_probed, tables_of, touched_shares
from outsize.training.run import _determinism
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode

CCE = (
    "embeddings.kind=tables",
    "embeddings.method=cce",
    "embeddings.max_params=64",
    "embeddings.recluster.count=2",
    "data.num_train=600",
    "data.largest_vocabulary=300",
    "train.validate_every=100",
)
PROBED = (*CCE, "embeddings.recluster.probe={blocks=3, rate=0.1}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run whose rates are chosen on validation data, and all of whose probes are used."""
    probe = "embeddings.recluster.probe={blocks=3}"
    config = make_config(*CCE, probe, "train.deterministic=true")
    out = tmp_path_factory.mktemp("probed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        use_all(patch)
        result = outsize.train(config, out, quiet=True)
    return config, out, result


def use_all(monkeypatch):
    """Let every probe be used."""
    monkeypatch.setattr(Losses, "holds", lambda gain, at_best_rate: True)


def reject_all(monkeypatch):
    """Let no probe be used."""
    monkeypatch.setattr(Losses, "holds", lambda gain, at_best_rate: False)


def test_a_run_probes_before_each_clustering_and_says_what_it_cost(undisturbed):
    config, out, result = undisturbed
    lines = RunFolder(out).metrics()
    probes = [line for line in lines if line["split"] == "probe"]
    assert [line["step"] for line in probes] == [6, 12]
    assert not any("skipped" in line for line in probes)
    clustered = [line for line in lines if line["split"] == "recluster"]
    assert {line["step"] for line in clustered} == {6, 12}
    tables = {name: t for name, t in result.model.embeddings.tables.items() if t.can_probe}
    assert tables
    for line in probes:
        assert line["blocks"] == 3
        assert line["rate"] > 0
        assert line["visits"] > 0
        rows = sum(config.embeddings.probe.num_bytes(table.spec, 2) for table in tables.values())
        copies = sum(table.memory_use().total_bytes for table in tables.values())
        assert 0 < line["extra_bytes"] <= max(rows, 3 * copies)  # with two moments
    page = (out / "report.html").read_text()
    assert page.index("<h2>Reclusterings</h2>") < page.index("<h2>Probes</h2>")
    assert all(table.num_helper == 0 for table in tables.values())


@pytest.mark.parametrize(("step", "stopped"), [(12, ""), (13, "early")])
def test_a_run_is_not_stopped_early_while_probes_are_to_come(step, stopped):
    loop = make_loop(make_config(*PROBED, "train.early_stop=true"))
    assert max(loop._reclustering.steps) == 12
    loop.state.step, loop.state.epoch_best, loop.state.previous_best = step, 2.0, 1.0
    loop._end_epoch()
    assert loop.state.stopped == stopped


def test_a_helper_may_stay_after_the_last_clustering():
    settings = "embeddings.recluster.probe={blocks=2, rate=0.1, helper=true, visits=0.1}"
    loop = make_loop(make_config(*CCE, settings))
    loop.fit()
    assert all(table.num_helper for table in tables_of(loop.task).values())


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_that_ends_inside_a_probe_resumes_bit_identical(
    undisturbed, tmp_path, monkeypatch, is_killed
):
    """It is asked to stop, or ends at once, in the second block of the second probe."""
    config, whole, _ = undisturbed
    asked, entered = threading.Event(), []
    enter = Probe.block

    def block_that_is_interrupted(probe, number):
        entered.append(number)
        if entered.count(1) == 2:
            if is_killed:
                raise SystemExit
            asked.set()
        return enter(probe, number)

    folder = RunFolder(tmp_path / "cut")
    folder.begin(config)
    monkeypatch.setattr(Probe, "block", block_that_is_interrupted)
    use_all(monkeypatch)
    with torch.random.fork_rng(), _determinism(True):
        torch.manual_seed(config.seed)
        loop = make_loop(config, folder.checkpoints, _Writes(folder), asked.is_set)
        with pytest.raises(SystemExit if is_killed else KeyboardInterrupt):
            loop.fit()
    monkeypatch.setattr(Probe, "block", enter)
    saved = load_checkpoint(latest_checkpoint(folder.checkpoints))["loop"]
    if is_killed:
        assert saved["step"] < 12
    else:
        assert (saved["step"], saved["unfinished"]) == (12, "recluster")
    outsize.train(config, tmp_path / "cut", resume=True, quiet=True)
    assert_same_tree(final_weights(tmp_path / "cut"), final_weights(whole))
    names = ("step", "split", "table", "mse", "rate", "visits", "loss")
    lines = [[[line.get(name) for name in names] for line in RunFolder(f).metrics()]
             for f in (whole, tmp_path / "cut")]  # fmt: skip
    assert lines[0] == lines[1]


def test_in_the_first_epoch_only_examples_that_training_has_read_are_read():
    loop = make_loop(make_config(*PROBED, "train.epochs=1"))
    task = loop.task
    assert task.seen(4) == (0, 4)
    assert task.seen(task.num_batches() * 2 + 1) == (1, task.num_batches())
    seen = torch.cat([b.labels for b, _ in zip(task.train_batches(0, 0), range(4), strict=False)])
    with Probe(tables_of(task), blocks=1).block(0) as block:
        batches = list(task.probe_batches(4, block, share=1.0))
        half = list(task.probe_batches(4, block, share=0.5))
    assert torch.equal(torch.cat([batch.labels for batch in batches]), seen)
    latest = torch.cat([batch.labels for batch in half])
    assert torch.equal(latest, seen[seen.numel() - seen.numel() // 2 :])


def test_a_block_reads_the_examples_that_have_its_ids():
    task = make_loop(make_config(*PROBED)).task
    counts = task.count_seen(100)
    probe = Probe(tables_of(task), counts, blocks=3)
    num_seen = 0
    for number in range(3):
        with probe.block(number) as block:
            found = list(task.probe_batches(100, block, share=1.0))
            for batch in found:
                hits = [block.contains(name, ids) for name, ids in batch.ids.items()]
                assert torch.stack(hits).any(dim=0).all()
            num_seen += sum(batch.num_examples for batch in found)
    assert num_seen / 600 == pytest.approx(sum(touched_shares(task, probe, counts)), rel=0.1)


def test_more_visits_than_allowed_are_sampled(monkeypatch):
    use_all(monkeypatch)
    recorder = Recorder()
    settings = "embeddings.recluster.probe={blocks=6, rate=0.1, visits=0.5}"
    make_loop(make_config(*CCE, settings), callbacks=recorder).fit()
    assert all(line["visits"] <= 0.55 * 600 for line in recorder.of("probe"))


def test_all_probes_of_a_short_run_visit_no_more_examples_than_the_run_itself(monkeypatch):
    use_all(monkeypatch)
    recorder = Recorder()
    settings = "embeddings.recluster.probe={blocks=6, rate=0.1}"
    loop = make_loop(make_config(*CCE, settings), callbacks=recorder)
    loop.fit()
    visits = [line["visits"] for line in recorder.of("probe")]
    assert len(visits) == 2
    assert 0.5 * 600 * loop.state.epoch < sum(visits) <= 1.1 * 600 * loop.state.epoch


@pytest.mark.parametrize(
    ("config", "run_visits", "expected"),
    [
        (ProbeConfig(rate=0.1), 100.0, 2.0 / 3),
        (ProbeConfig(rate=0.1), 1.5, 0.5),
        (ProbeConfig(rate=0.1, passes=2), 1.5, 0.25),
        (ProbeConfig(), 1.5, 1.5 / 7),  # four rates are tried, each on all examples
        (ProbeConfig(visits=6.0), 0.1, 1.0),
    ],
)
def test_the_share_of_examples_keeps_within_two_visits_and_within_the_run(
    config, run_visits, expected
):
    assert config.share_of((1.0, 1.0, 1.0), run_visits) == pytest.approx(expected)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 1000), num_rows=st.integers(1, 2_000), num_features=st.sampled_from([1, 8])
)
def test_rates_are_tried_on_ids_of_a_quarter_of_the_examples(seed, num_rows, num_features):
    table = outsize.build_table("cce", outsize.TableSpec("ad", num_rows, 8), max_params=64)
    draws = torch.rand(10_000, generator=torch.Generator().manual_seed(seed))
    counts = (draws**3 * num_rows).long().bincount(minlength=num_rows)
    probe = Probe({"ad": table}, {"ad": counts}, blocks=3)
    ids = tried_ids(probe, {"ad": counts}, num_features, seed)["ad"]
    assert (ids.diff() > 0).all()
    assert (probe.block_of("ad")[ids] == 0).all()
    limit = 10_000 * (1 - 0.75 ** (1 / num_features))
    if counts[ids].max() <= limit / 4:
        assert 0 < counts[ids].sum() <= limit
    else:  # every id of the first block is frequent
        first = counts[probe.block_of("ad") == 0]
        assert (first > limit / 4).all()
        assert ids.numel() == -(-first.numel() // 4)


def test_the_rate_with_the_lowest_loss_is_chosen():
    table = outsize.build_table("cce", outsize.TableSpec("ad", 40, 8), max_params=64)
    probe, tried = Probe({"ad": table}), []

    def loss_after(block):
        tried.append(block.rate)
        return math.nan if block.rate > 0.1 else abs(math.log(block.rate / 0.012))

    assert choose_rate(probe, {"ad": torch.arange(40)}, loss_after) == 0.01
    assert tried == [0.03, 0.1, 0.01, 0.003]


@pytest.mark.parametrize(
    ("gain", "holds"),
    [
        ((0.3, 0.5), (True, True)),
        ((0.2, 0.5), (True, False)),
        ((0.15, 0.5), (False, False)),
        ((0.1, -0.1), (True, True)),
        ((-0.1, -0.5), (False, False)),
    ],
)
def test_a_gain_of_training_alone_does_not_hold(gain, holds):
    """A third is enough where validation has chosen the rate, and half elsewhere."""
    before, after = Losses(0.6, 0.7), Losses(0.6 - gain[0], 0.7 - gain[1])
    assert after.below(before) == pytest.approx(gain)
    gained = after.below(before)
    assert (gained.holds(at_best_rate=True), gained.holds(at_best_rate=False)) == holds


def toss_labels(data):
    """Make the labels of training those of a coin."""
    coin = torch.randint(2, (data.num_examples("train"),)).float()
    read = data.examples

    def examples(split, low, high, epoch=0):
        found = read(split, low, high, epoch)
        return replace(found, labels=coin[low:high]) if split == "train" else found

    data.examples = examples


def test_rows_that_learned_noise_are_not_clustered_where_examples_are_read_again():
    """Labels are a coin's: a run with a probe is the run without one, bit for bit."""
    settings = (*CCE, "data.num_train=1200", "train.epochs=2", "train.deterministic=true")
    weights, kept = [], []
    for more in ((), ("embeddings.recluster.probe={blocks=1, rate=0.3}",)):
        torch.manual_seed(0)
        recorder = Recorder()
        loop = make_loop(make_config(*settings, *more), callbacks=recorder)
        toss_labels(loop.task.data)
        loop.fit()
        weights.append(dict(loop.task.model.state_dict()))
        kept += [line.get("kept") for line in recorder.of("probe")]
    assert kept == [False, None]  # the second is skipped
    assert_same_tree(*weights)


REJECTED = (*CCE, "embeddings.recluster.count=3", "train.epochs=2", "train.deterministic=true")


def test_a_probe_that_is_not_used_ends_the_probes_of_a_run_and_the_page_says_so(
    tmp_path, monkeypatch, capsys
):
    reject_all(monkeypatch)
    config = make_config(*REJECTED, "embeddings.recluster.probe={blocks=2, rate=0.1}")
    outsize.train(config, tmp_path / "run")
    lines = [line for line in RunFolder(tmp_path / "run").metrics() if line["split"] == "probe"]
    first, *others = lines
    assert first["kept"] is False
    words = f"the probe of step {first['step']} was not used"
    assert [line["skipped"] for line in others] == [words, words]
    assert all(line.keys() == {"step", "split", "skipped"} for line in others)
    assert words in (tmp_path / "run" / "report.html").read_text()
    assert f"skipped: {words}" in " ".join(capsys.readouterr().err.split())


def test_probes_go_on_while_they_are_used(monkeypatch):
    use_all(monkeypatch)
    recorder = Recorder()
    probe = "embeddings.recluster.probe={blocks=2, rate=0.1}"
    make_loop(make_config(*REJECTED, probe), callbacks=recorder).fit()
    assert [line.get("kept") for line in recorder.of("probe")] == [True, True, True]


def test_a_run_resumed_after_a_rejected_probe_skips_the_others_too(tmp_path, monkeypatch):
    """The rule would accept every probe of the resumed run: only the checkpoint says to skip."""
    reject_all(monkeypatch)
    probe = "embeddings.recluster.probe={blocks=2, rate=0.1}"
    config = make_config(*REJECTED, probe, "checkpoint.every=1")
    outsize.train(config, tmp_path / "whole", quiet=True)
    folder = RunFolder(tmp_path / "cut")
    folder.begin(config)
    with torch.random.fork_rng(), _determinism(True):
        torch.manual_seed(config.seed)
        loop = make_loop(config, folder.checkpoints, _Writes(folder))
        for step in loop.steps():
            if step > min(loop._reclustering.steps):
                break
    saved = load_checkpoint(latest_checkpoint(folder.checkpoints))["loop"]
    assert saved["rejected_probe"] == min(loop._reclustering.steps)
    use_all(monkeypatch)
    outsize.train(config, tmp_path / "cut", resume=True, quiet=True)
    assert_same_tree(final_weights(tmp_path / "cut"), final_weights(tmp_path / "whole"))
    names = ("step", "split", "table", "mse", "rate", "kept", "skipped", "loss")
    lines = [[[line.get(name) for name in names] for line in RunFolder(f).metrics()]
             for f in (tmp_path / "whole", tmp_path / "cut")]  # fmt: skip
    assert lines[0] == lines[1]


def test_early_stopping_does_not_wait_for_probes_that_are_skipped():
    loop = make_loop(make_config(*PROBED, "train.early_stop=true"))
    loop.state.step, loop.state.epoch_best, loop.state.previous_best = 7, 2.0, 1.0
    loop.state.rejected_probe = 6
    loop._end_epoch()
    assert loop.state.stopped == "early"


def test_nothing_has_changed_if_a_probe_is_stopped_while_its_gain_is_measured(monkeypatch):
    loop = make_loop(make_config(*PROBED))
    for step in loop.steps():
        if step == 5:
            break
    before = {name: value.clone() for name, value in loop.task.model.state_dict().items()}
    moments = copy.deepcopy(loop.optimizers[0].state_dict())
    measure, asked = loop.task.evaluate, []

    def evaluate(split):
        asked.append(split)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return measure(split)

    monkeypatch.setattr(loop.task, "evaluate", evaluate)
    with pytest.raises(KeyboardInterrupt):
        recluster_probed(
            loop.task, ProbeConfig(blocks=2, rate=0.1), 5, loop.optimizers[0], helper=True,
            weighted=True, state_numbers=2, reads_again=True,
        )  # fmt: skip
    assert len(asked) == 2
    assert_same_tree(dict(loop.task.model.state_dict()), before)
    assert_same_tree(loop.optimizers[0].state_dict(), moments)


def test_nan_in_a_probe_ends_the_run_in_words_and_nothing_has_changed(monkeypatch):
    loop = make_loop(make_config(*PROBED))
    loop.begin()
    before = {name: value.clone() for name, value in loop.task.model.state_dict().items()}
    loss = loop.task.loss
    monkeypatch.setattr(loop.task, "loss", lambda batch: loss(batch) * float("nan"))
    probe = ProbeConfig(blocks=2, rate=0.1)
    with pytest.raises(NonFiniteError, match="rows of a probe became NaN"):
        recluster_probed(
            loop.task, probe, 6, loop.optimizers[0], helper=True, weighted=True, state_numbers=2
        )
    assert_same_tree(dict(loop.task.model.state_dict()), before)
    assert loop.task.model.training


def test_ranks_are_equal_after_a_probe_and_refuse_nan_together():
    code, output, errors = run_ranks(2, Path(__file__).parents[1] / "ranks" / "check_probe.py")
    assert code == 0, errors
    assert output.count("has passed") == 2


def test_the_model_and_its_gradients_stay_as_they_are():
    loop = make_loop(make_config(*PROBED))
    dense = {n: p.detach().clone() for n, p in loop.task.model.named_parameters()
             if "tables" not in n}  # fmt: skip
    random = torch.get_rng_state()
    probe = ProbeConfig(blocks=2)
    recluster_probed(
        loop.task, probe, 6, loop.optimizers[0], helper=False, weighted=False, state_numbers=2
    )
    now = dict(loop.task.model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in dense.items())
    assert all(weight.grad is None for weight in now.values())
    assert torch.equal(torch.get_rng_state(), random)


def test_retrieval_probes_through_its_collection_and_counts_no_draws():
    settings = (
        "embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=40",
        "embeddings.recluster={count=1, probe={blocks=2}}", "train.epochs=1",
    )  # fmt: skip
    recorder = Recorder()
    loop = retrieval_runs.make_loop(retrieval_runs.make_config(*settings), callbacks=recorder)
    for step in loop.steps():
        if step == max(loop._reclustering.steps) - 1:
            break
    draws = [c.counters() for c in [loop.task._cache]]
    probe = loop.config.embeddings.probe
    before = {n: t.pointers.clone() for n, t in tables_of(loop.task).items()}
    recluster_probed(
        loop.task, probe, step, loop.optimizers[0], helper=False, weighted=True, state_numbers=2
    )
    assert [c.counters() for c in [loop.task._cache]] == draws
    after = {n: t.pointers for n, t in tables_of(loop.task).items()}
    assert before
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_each_batch_of_a_retrieval_probe_has_negatives_of_its_own(monkeypatch):
    """No step is committed between them, but a probe against one draw would learn that draw."""
    settings = (
        "embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=40",
        "embeddings.recluster={count=1, probe={blocks=2, rate=0.1}}", "train.epochs=1",
        'negatives={kind="uniform", num_negatives=3}',
    )  # fmt: skip
    loop = retrieval_runs.make_loop(retrieval_runs.make_config(*settings))
    for step in loop.steps():
        if step == max(loop._reclustering.steps) - 1:
            break
    drawn, choose = [], loop.task.negatives.choose

    def recorded(*arguments):
        drawn.append(choose(*arguments))
        return drawn[-1]

    monkeypatch.setattr(loop.task.negatives, "choose", recorded)
    before = loop.task.negatives.step
    recluster_probed(
        loop.task, loop.config.embeddings.probe, step, loop.optimizers[0], helper=False,
        weighted=True, state_numbers=2,
    )  # fmt: skip
    firsts = {tuple(found[0].tolist()) for found in drawn}
    assert len(drawn) > 3
    assert len(firsts) > len(drawn) / 2
    assert loop.task.negatives.step == before


def test_bags_are_found_by_any_of_their_ids():
    table = outsize.build_table("cce", outsize.TableSpec("ad", 40, 4), max_params=16)
    with Probe({"ad": table}, blocks=2).block(0) as block:
        mine, other = (int(ids[0]) for ids in (block.rows["ad"].ids,
                       (~block.contains("ad", torch.arange(40))).nonzero()))  # fmt: skip
        flat = Bag(torch.tensor([other, mine, other, mine]), torch.tensor([0, 2, 2, 3]))
        assert touching([("ad", flat)], block).tolist() == [0, 3]
        wide = torch.tensor([[other, -1], [-1, mine], [other, other]])
        assert touching([("ad", wide), ("none", wide)], block).tolist() == [1]
    taken = flat.take(torch.tensor([3, 1, 0]))
    assert taken.values.tolist() == [mine, other, mine]
    assert taken.offsets.tolist() == [0, 1, 1]


def test_matching_batches_are_whole_and_even():
    def read(low, high):
        return torch.arange(low, high)

    found = matching_batches(
        read, lambda x: (x % 3 == 0).nonzero().flatten(), 100, 8, 1.0, torch.device("cpu")
    )
    batches = [(examples[rows], num) for examples, rows, num in found]
    assert torch.equal(torch.cat([some for some, _ in batches]), torch.arange(0, 100, 3))
    assert all(len(some) == num <= 8 for some, num in batches)


def test_of_every_chunk_a_share_is_read_and_no_more():
    read = []

    def examples(low, high):
        read.append((low, high))
        return torch.arange(low, high)

    found = matching_batches(
        examples, lambda x: torch.arange(x.numel()), 40, 1, 0.25, torch.device("cpu")
    )
    batches = [examples[rows] for examples, rows, _ in found]
    assert read == [(12, 16), (28, 32), (38, 40)]  # the ends of chunks of 16 batches
    assert torch.cat(batches).tolist() == [*range(12, 16), *range(28, 32), 38, 39]


def test_losses_of_a_block_differ_as_those_of_all_validation_do():
    """Examples without ids of the block have the same loss whatever its rows are."""
    task = make_loop(make_config(*PROBED)).task
    num = task.data.num_examples("validation")
    probe = Probe(tables_of(task), blocks=1)
    ids = {name: torch.arange(3, t.spec.num_rows, 7) for name, t in tables_of(task).items()}
    found = []
    for shift in (0.0, 0.5):
        with task.frozen(), probe.trial(0.1, ids) as block:
            for rows in block.rows.values():
                rows.rows.data += shift
            found.append((task.probed_loss(block), num * task.evaluate("validation")["loss"]))
    (some, every), (some_after, every_after) = found
    assert 0 < some < every
    assert some_after - some == pytest.approx(every_after - every, rel=1e-4)
    assert abs(some_after - some) > 0.1


def test_losses_of_retrieval_are_those_of_some_queries_equally_spaced(monkeypatch):
    settings = ("embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=64")
    task = retrieval_runs.make_loop(retrieval_runs.make_config(*settings)).task
    tables = tables_of(task)
    ids = {name: torch.arange(0, t.spec.num_rows, 2) for name, t in tables.items()}
    place = "outsize.training.tasks.retrieval._PROBED_QUERIES"
    with task.frozen(), Probe(tables, blocks=1).trial(0.1, ids) as block:
        every = task.evaluate("validation")["loss"]
        assert task.probed_loss(block) == every
        monkeypatch.setattr(place, 10)
        some = task.probed_loss(block)
    relevant = task.data.relevant("validation")
    asked = relevant.counts().nonzero().flatten()
    assert asked.numel() > 20
    spread = relevant.spread(10)
    assert spread.counts().nonzero().flatten().tolist() == [
        int(asked[i * asked.numel() // 10]) for i in range(10)
    ]
    taken = spread.counts() > 0
    assert torch.equal(spread.counts()[taken], relevant.counts()[taken])
    assert some != every
    assert 0.5 * every < some < 2 * every


def test_kmeans_of_a_run_stops_at_its_tolerance(monkeypatch):
    """It reaches clusterings with a probe and without one."""
    given = []
    for module in ("block_clustering", "reclustering"):
        place = f"outsize.tables.{module}.kmeans"
        real = importlib.import_module(f"outsize.tables.{module}").kmeans

        def recorded(*arguments, _real=real, _module=module, **options):
            given.append((_module, options["tolerance"]))
            return _real(*arguments, **options)

        monkeypatch.setattr(place, recorded)
    use_all(monkeypatch)
    for run in (PROBED, CCE):
        make_loop(make_config(*run, "embeddings.recluster.tolerance=0.01")).fit()
    assert {module for module, _ in given} == {"block_clustering", "reclustering"}
    assert {tolerance for _, tolerance in given} == {0.01}
    with pytest.raises(ConfigError, match=r"tolerance must be >= 0 and < 1, but got 1"):
        make_config(*CCE, "embeddings.recluster.tolerance=1.0")


@pytest.mark.parametrize(
    ("state_numbers", "ids_per_code", "expected"),
    [
        (2, 10_000.0, 8),  # a first block of 1,250 ids per code is more than enough
        (2, 400.0, 6),  # 64 ids per code
        (2, 10.0, 2),  # a quarter of a full table with Adam's two moments
        (1, 10.0, 3),
        (0, 10.0, 5),
    ],
)
def test_blocks_leave_ids_to_fit_codes_on_and_bound_memory(state_numbers, ids_per_code, expected):
    spec = outsize.TableSpec("ad", 10_000, 32)
    config = ProbeConfig()
    assert config.blocks_of(spec, state_numbers, ids_per_code) == expected
    full = 10_000 * 32 * 4 * (1 + state_numbers)
    assert config.num_bytes(spec, state_numbers) < full / 4
    assert ProbeConfig(blocks=20).blocks_of(spec, state_numbers, ids_per_code) == 20


def test_tables_may_have_blocks_of_their_own_number():
    specs = [outsize.TableSpec(name, 60, 4) for name in ("one", "two")]
    tables = {s.name: outsize.build_table("cce", s, max_params=32) for s in specs}
    probe = Probe(tables, blocks={"one": 1, "two": 3})
    assert probe.num_blocks == 3
    for number in range(3):
        with probe.block(number) as block:
            sizes = [rows.ids.numel() for rows in block.rows.values()]
            assert sizes == [60 if number == 0 else 0, 20]
            assert tables["one"](torch.arange(60)).shape == (60, 4)
    assert probe.apply().keys() == {"one", "two"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true", ProbeConfig()),
        ("false", None),
        ("{blocks = 3, passes = 2, rate = 0.5}", ProbeConfig(blocks=3, passes=2, rate=0.5)),
    ],
)
def test_probe_is_a_switch_or_a_section(value, expected):
    config = make_config(*CCE, f"embeddings.recluster.probe={value}")
    assert config.embeddings.probe == expected
    tree = encode(config)
    again = outsize.training.strict_toml.decode(type(config), tree, "again")
    assert again == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["embeddings.recluster.probe=8"], "must be true, false or a section, but got 8"),
        (["embeddings.recluster.probe={blocks=0}"], "blocks must be between 1 and 255"),
        (["embeddings.recluster.probe={rate=0.0}"], "must be > 0"),
        (["embeddings.recluster.probe={rat=1}"], "unknown key"),
        (["embeddings.method=hash", "embeddings.recluster.probe=true"], "of the method cce"),
    ],
)
def test_impossible_probes_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(*CCE, *settings)


def test_a_run_whose_budget_holds_full_tables_is_that_without_probes():
    recorder = Recorder()
    full = (*PROBED, "embeddings.max_params=1000000")
    make_loop(make_config(*full), callbacks=recorder).fit()
    assert not recorder.of("probe")
    assert not recorder.of("recluster")
