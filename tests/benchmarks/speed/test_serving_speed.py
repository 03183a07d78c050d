import threading

import pytest
import torch

from benchmarks.speed import plain_server, serving
from benchmarks.speed.serving import BENCHMARK
from outsize.bench import measure

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
SHAPE = {"sizes": [5, 9], "dim": 4, "num_dense": serving._NUM_DENSE, "bottom": [8], "top": [8]}


@pytest.fixture
def port():
    """The port of the plain server, in a thread."""
    config = uvicorn.Config(plain_server.make_app(SHAPE), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(20)


def test_the_plain_model_is_a_dlrm_of_the_same_size():
    import outsize

    specs = [outsize.TableSpec(f"c{i}", size, 4) for i, size in enumerate(SHAPE["sizes"])]
    tables = {spec.name: outsize.FullTable(spec) for spec in specs}
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec(n) for n in tables], tables)
    own = outsize.models.DLRM(SHAPE["num_dense"], embeddings, bottom=(8,), top=(8,))
    plain = plain_server.PlainDLRM(**SHAPE)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (own, plain)]
    assert sizes[0] == sizes[1]
    rows = serving.encoded(SHAPE["sizes"], 3, seed=0)
    assert plain(torch.tensor(rows["dense"]), torch.tensor(rows["ids"])).shape == (3,)


def test_every_request_of_every_client_is_timed(port):
    import json

    body = json.dumps(serving.encoded(SHAPE["sizes"], 3, seed=0))
    latencies, seconds = serving.ask(port, body, clients=2, requests=6)
    assert len(latencies) == 6
    assert 0 < max(latencies) <= seconds
    facts = serving._facts(latencies, 18 / seconds)
    assert facts["p50_ms"] <= facts["p99_ms"]


def test_the_page_has_a_line_for_each_server_and_each_call():
    fact = {"median": 2.0, "least": 1.0, "most": 3.0}
    row = {"model": "int8", "clients": 8, "rows": 64}
    results = {
        "sizes": [5, 9], "repeats": 2, "requests": 16, "bytes": {"int8": 2_000_000},
        "served": [{**row, "p50_ms": fact, "p99_ms": fact, "rows_per_s": fact}],
        "in_process": [{"model": "int8", "rows": 64, "rows_per_s": 5.0, "spread": [4.0, 6.0]}],
    }  # fmt: skip
    page = serving.table(results)
    assert "| 64 | 8 | int8 | 2.00 (1.00 to 3.00) |" in page
    assert "| 64 | int8 | 5 | 4 to 6 |" in page
    assert "int8 2.00 MB" in page


@pytest.mark.slow
def test_the_quick_form_asks_all_servers_in_turns(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    models = [serving.PLAIN, "full", "cce", "int8"]
    assert [row["model"] for row in results["served"]] == models * 4
    assert all(row["rows_per_s"]["median"] > 0 for row in results["served"])
    assert results["bytes"]["int8"] < results["bytes"]["full"]
    (page,) = tmp_path.glob("serving-*.md")
    assert "plain PyTorch" in page.read_text()
