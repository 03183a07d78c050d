"""The HTTP endpoint: a real server, asked by the standard library's client."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from raw_logs import INPUTS, TEST_ROWS, as_columns

import outsize
from outsize.errors import ConfigError
from outsize.export import serving
from outsize.export.batching import BatchingScorer, FullError

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
ROWS = [{name: row[name] or None for name in INPUTS} for row in TEST_ROWS]


@contextlib.contextmanager
def running(folder, **limits):
    """A server of a model; its port."""
    app = serving.make_app(folder, **limits)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()
    assert "outsize-scorer" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture(scope="module")
def server(trained):
    """The port of a server."""
    with running(trained("compressed")[2], max_rows=200, max_bytes=100_000) as port:
        yield port


def ask(port, method, path, content=None, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        body = json.dumps(content) if body is None and content is not None else body
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_rows_of_both_forms_are_scored(server, trained):
    expected = outsize.load_exported(trained("compressed")[2]).predict(as_columns(TEST_ROWS))
    for content in (ROWS, as_columns(TEST_ROWS, INPUTS)):
        status, answer = ask(server, "POST", "/predict", content)
        assert status == 200
        np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-6)
    assert ask(server, "POST", "/predict", []) == (200, {"probabilities": []})


def test_requests_at_once_get_their_own_scores(server, trained):
    expected = outsize.load_exported(trained("compressed")[2]).predict(as_columns(TEST_ROWS))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: ask(server, "POST", "/predict", [row]), ROWS[:40]))
    scores = [answer["probabilities"][0] for _, answer in found]
    np.testing.assert_allclose(scores, expected[:40], rtol=0, atol=1e-6)


def test_health_is_told(server):
    status, answer = ask(server, "GET", "/health")
    assert (status, answer["status"]) == (200, "ok")


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ("rows", 422, "expected a list of objects, or an object of lists"),
        ([1], 422, "expected a list of objects"),
        ({"city": "a"}, 422, "column 'city' is not a list"),
        ({"city": ["a"], "age": []}, 422, "differ in length"),
        ([{"city": "city 1"}], 422, "the rows have no column 'price'"),
        ([{**ROWS[0], "age": "old"}], 422, "rows 0 (counted from 0) cannot be scored"),
        ([{**ROWS[0], "city": ["a"]}], 422, "'city' is not text, a number or null"),
        ([{**ROWS[0], "price": 1e300}], 422, "rows 0 (counted from 0) cannot be scored"),
        (
            [ROWS[0], {**ROWS[0], "city": "\ud800"}],
            422,
            "row 1 (counted from 0): 'city' is half of",
        ),
        ([{**ROWS[0], "\udc00": 1}], 422, "row 0 (counted from 0): '\\udc00' is half of"),
        (ROWS * 2, 413, "300 rows, but at most 200 per request"),
    ],
)
def test_rows_that_cannot_be_scored_are_refused_in_one_line(server, content, status, message):
    found, answer = ask(server, "POST", "/predict", content)
    assert found == status
    assert message in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[" * 50_000])
def test_what_is_no_json_is_a_bad_request(server, body):
    status, answer = ask(server, "POST", "/predict", body=body)
    assert status == 400
    assert answer["error"].startswith("the body is not JSON")


def test_other_routes_and_methods_are_refused(server):
    assert ask(server, "GET", "/other")[0] == 404
    assert ask(server, "GET", "/predict")[0] == 405


def test_a_body_that_states_its_great_length_is_refused_before_it_is_read(server):
    status, answer = ask(
        server, "POST", "/predict", body=b"", headers={"Content-Length": str(1 << 30)}
    )
    assert status == 413
    assert "more than 100,000 bytes" in answer["error"]


def test_a_client_that_leaves_within_its_body_is_no_error_of_the_server(server, caplog):
    with socket.create_connection(("127.0.0.1", server)) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n[")
        ask(server, "GET", "/health")  # by now, the body is being read
    assert ask(server, "GET", "/health")[0] == 200
    assert not caplog.records


def test_a_body_without_a_length_is_refused_while_it_is_read(server):
    sent = 0

    def pieces():
        nonlocal sent
        while True:  # the server must end it
            sent += 1
            yield b" " * 65_536

    connection = http.client.HTTPConnection("127.0.0.1", server, timeout=20)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.request("POST", "/predict", pieces(), encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})  # fmt: skip
    connection.close()
    assert sent * 65_536 < 1 << 30
    assert ask(server, "GET", "/health")[0] == 200


def test_requests_that_wait_together_are_one_batch_and_too_many_are_refused():
    begun, go_on, sizes = threading.Event(), threading.Event(), []

    def score(rows):
        sizes.append(len(rows))
        begun.set()
        go_on.wait(20)
        if any(row["x"] < 0 for row in rows):
            raise ValueError("negative")
        return np.array([row["x"] for row in rows])

    scorer = BatchingScorer(score, max_rows=5, max_waiting=4)
    first = scorer.submit([{"x": 0}])
    assert begun.wait(20)
    waiting = [scorer.submit([{"x": x}, {"x": x + 1}]) for x in (10, 20, 30, -9)]
    with pytest.raises(FullError, match="too many requests are waiting"):
        scorer.submit([{"x": 1}])
    go_on.set()
    assert first.result(20).tolist() == [0]
    assert [future.result(20).tolist() for future in waiting[:3]] == [[10, 11], [20, 21], [30, 31]]
    with pytest.raises(ValueError, match="negative"):
        waiting[3].result(20)
    assert sizes == [1, 4, 4, 2, 2]  # the last two were scored apart after one failed
    go_on.clear()
    begun.clear()
    blocked = scorer.submit([{"x": 0}])
    assert begun.wait(20)
    mixed = [scorer.submit([{"x": 1}]), scorer.submit([{"x": 2.5}])]
    go_on.set()
    assert [future.result(20).tolist() for future in (blocked, *mixed)] == [[0], [1], [2.5]]
    assert sizes[5:] == [1, 1, 1]  # a whole number is read apart from a fraction
    scorer.close()
    with pytest.raises(FullError):
        scorer.submit([{"x": 1}])


def test_answers_do_not_wait_for_acknowledgements():
    """Accepted sockets take the option from the one that listens."""
    with serving._listen("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_cannot_be_served_is_refused_in_words(trained, monkeypatch):
    with pytest.raises(ConfigError, match="must be >= 1"):
        serving.make_app(trained("compressed")[2], max_rows=0)
    monkeypatch.setattr(serving, "_NEEDED", ("no_such_package",))
    with pytest.raises(ConfigError, match=r"needs no_such_package: pip install 'outsize\[serve\]'"):
        serving.make_app(trained("compressed")[2])


def test_the_command_listens_on_loopback_and_stops_cleanly_on_sigterm(trained):
    command = [sys.executable, "-m", "outsize", "serve", trained("compressed")[2], "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        port = int(re.search(r" on http://127\.0\.0\.1:(\d+) ", line)[1])
        assert ask(port, "POST", "/predict", ROWS[:2])[0] == 200
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: Address"):
            serving.serve(trained("compressed")[2], port=port)
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
    assert (process.returncode, rest) == (0, "")
