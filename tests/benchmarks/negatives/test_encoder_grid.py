"""The grid of a fine-tuned text encoder: equal trials, time and memory; continued if stopped."""

import json
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from benchmarks.negatives import encoder_grid, token_file
from benchmarks.negatives.encoder_cells import CACHE, IN_BATCH, RANKING, Plan, Run, fitted
from benchmarks.negatives.token_file import Tokens

PLAN = Plan("one", "two")


def trained(run, score):
    return {"key": run.key, "validation": {"mrr@10": score}, "test": {}}


def test_trials_come_first_and_their_best_decides_for_every_seed_and_set():
    done = {}
    trials = list(PLAN.ready(done))
    assert [run.method for run in trials[:8]] == [CACHE] * 8
    assert {run.seed for run in trials} == {100}
    assert {run.data for run in trials} == {"one"}
    assert len(trials) == 5 * len(PLAN.rates) * len(PLAN.betas)  # as many for each
    for run in trials:
        done[run.key] = trained(run, 0.5 + (run.rate == 1e-4) * 0.1 + (run.beta == 20) * 0.1)
    finals = list(PLAN.ready(done))
    assert {(run.rate, run.beta) for run in finals} == {(1e-4, 20.0)}
    assert [run.seed for run in finals] == [0, 1, 2] * 7 + [0] * 2
    assert {run.batch for run in finals[-2:]} == {512}
    done[finals[0].key] = trained(finals[0], 0.9)
    assert list(PLAN.ready(done)) == finals[1:]


def test_a_method_without_all_its_trials_is_not_trained():
    done = {run.key: trained(run, 0.5) for run in list(PLAN.ready({}))[1:]}
    waiting = [run.method for run in PLAN.ready(done) if run.batch == 128 and not run.is_trial]
    assert CACHE not in waiting
    assert IN_BATCH in waiting


def test_cached_ranking_takes_the_time_of_the_cache_and_no_more_memory():
    def at(ms, peak):
        return {"ms": ms, "peak_bytes": peak}

    timing = {
        f"{CACHE} 128": at(50.0, 100),
        f"{RANKING} 512 in 128": at(80.0, 40),
        f"{RANKING} 512 in 256": at(60.0, 90),
        f"{RANKING} 512 in 512": at(40.0, 101),
    }
    run = fitted(Run("one", RANKING, 512, 1e-4, 20.0, 0, 1200), timing)
    assert (run.mini_batch, run.steps) == (256, 1000)
    other = Run("one", CACHE, 128, 1e-4, 20.0, 0, 1200)
    assert fitted(other, timing) == other


def test_a_line_that_was_cut_off_is_trained_again(tmp_path):
    path = tmp_path / "cells"
    path.write_text('{"key": "a", "error": 0}\n{"key": "b", "valid')
    records = encoder_grid.Records(path, lambda said: None)
    assert list(records.done) == ["a"]
    records._say = lambda said: None
    encoder_grid.append_line(path, '{"key": "b"}\n')
    assert list(encoder_grid.read_cells(path)) == ["a", "b"]


def write_pairs(path, num=120):
    splits = ["dev" if i % 10 == 8 else "test" if i % 10 == 9 else "train" for i in range(num)]
    columns = {
        "synopsis": [f"w{i % 60} w{i % 7} w{i // 60}" for i in range(num)],
        "description": [f"w{i % 60} w{i % 5} w{i // 60} w{i % 3}" for i in range(num)],
        "split": splits,
    }
    parquet.write_table(pa.table(columns), path)


def encoder_and_sets(folder, dropout=0.1):
    """A tiny random BERT, and two files of tokens."""
    from tiny_texts import write_bare_bert

    from outsize.integrations.sentence_transformers import assemble_model

    model = folder / "bert"
    bare = write_bare_bert(folder / "bare", dropout=dropout)
    assemble_model(bare, max_seq_length=12).save_pretrained(str(model))
    sets = [folder / "one.tokens", folder / "two.tokens"]
    for path in sets:
        write_pairs(path.with_suffix(".parquet"))
        words = [str(path.with_suffix(".parquet")), str(model), str(path)]
        token_file.main([*words, "--max-tokens", "12"])
    return model, sets


needs_library = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not there"
)


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_cached_ranking_has_the_gradients_of_in_batch_negatives(tmp_path):
    from benchmarks.negatives.encoder_tasks import CachedRankingTask, TokenTask

    model, (path, _) = encoder_and_sets(tmp_path, dropout=0.0)
    tokens, found = Tokens.read(path), []
    for method in (IN_BATCH, RANKING):
        config = Run("one", method, 16, 1e-3, 20.0, 0, 4).config(model, 12, "cpu")
        chunked = CachedRankingTask(config, tokens, 3) if method == RANKING else None
        task = chunked or TokenTask(config, tokens)
        task.model.train()
        loss = task.loss(next(task.train_batches(0, 0)))
        loss.backward()
        weights = dict(task.model.named_parameters())
        found.append((loss.detach(), {n: w.grad for n, w in weights.items() if w.requires_grad}))
    torch.testing.assert_close(found[0], found[1])


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_a_stopped_grid_goes_on_and_compares_all_methods(tmp_path):
    model, sets = encoder_and_sets(tmp_path)
    tokens = Tokens.read(sets[0])
    assert int((tokens.items[0] >= 0).sum()) == 6  # four words between two special tokens
    assert torch.equal(tokens.pairs["test"][0], tokens.pairs["test"][1])
    cells, out = tmp_path / "cells", tmp_path / "out"
    words = [str(model), *map(str, sets), "--cells", str(cells), "--out", str(out), "--max-tokens",
             "12", "--batch", "4", "8", "--steps", "6", "--trial-steps", "2", "--rates", "1e-3",
             "--betas", "10", "20", "--seeds", "2", "--workers", "2",
             "--device", "cpu"]  # fmt: skip
    encoder_grid.main([*words, "--seconds", "0"])
    encoder_grid.main(words)
    once = cells.read_text()
    whole = encoder_grid.read_cells(cells)
    assert len(whole) == 1 + 5 * 2 + 7 * 2 + 2
    for key, record in whole.items():
        assert ("mrr@10" in record.get("test", {})) == key.startswith("final")
    kept = once.splitlines(keepends=True)[:9]
    cells.write_text("".join(kept) + once.splitlines()[9][:20])
    encoder_grid.main(words)
    assert cells.read_text().startswith("".join(kept))
    assert encoder_grid.read_cells(cells).keys() == whole.keys()
    (written,) = out.glob("*.json")
    assert len(json.loads(written.read_text())["records"]) == len(whole)
    page = written.with_suffix(".md").read_text()
    assert f"| one | {CACHE} | 8 |" in page
    assert f"| one | {RANKING} in" in page
    assert "- two: the cache at 8 above in-batch at 8: " in page
    assert page.endswith("in the mean (seeds: 1 and 1), one seed\n")
