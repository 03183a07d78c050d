"""Text models are searched from the command line, over HTTP, and with an index."""

import http.client
import io
import json
import shutil
import threading
from contextlib import contextmanager

import pytest
import torch
from function_runs import MERGE, functions_tree, write_package

import outsize
from outsize.cli import main
from outsize.cli.search_command import excerpt, printable
from outsize.errors import ConfigError
from outsize.export import serving
from outsize.export.http_requests import RequestError
from outsize.export.search_serving import checked, parse_queries
from outsize.export.text_search import TextSearch, model_version
from outsize.search import ItemIndex
from outsize.training.config import RunConfig
from outsize.training.export_run import export_run
from outsize.training.strict_toml import decode

uvicorn = pytest.importorskip("uvicorn")
ESCAPE = '''

def escape(text):
    """Escape a text with <script>alert(1)</script> for a page."""
    return "\\x1b[31m" + text
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run, its export, and the export of an earlier step; tests only read them."""
    folder = tmp_path_factory.mktemp("functions")
    write_package(folder / "packages", MERGE + ESCAPE)
    tree = {
        **functions_tree(folder / "packages", steps=4, validate_every=2, early_stop=False),
        "checkpoint": {"every": 2},
    }
    result = outsize.train(decode(RunConfig, tree, "test"), folder / "run", quiet=True)
    export_run(result.out, folder / "exported", step=4)
    export_run(result.out, folder / "earlier", step=2)
    return folder


def run(capfd, *words):
    with pytest.raises(SystemExit) as left:
        main(["search", *map(str, words)])
    shown = capfd.readouterr()
    return left.value.code, shown.out, shown.err


def test_answers_have_what_is_known_of_items(trained):
    search = TextSearch(trained / "exported")
    ((best, *_), _) = search.answers(["merge sorted lists", "take"], 3)
    assert (best.rank, best.id) == (1, "shelf.merge")
    assert best.facts == {"file": str(trained / "packages" / "shelf.py"), "line": 2}
    assert best.text.startswith("def merge(*iterables):")
    assert best.version == search.version == model_version(trained / "exported")
    assert model_version(trained / "earlier") != search.version
    with pytest.raises(ConfigError, match="an empty query finds nothing"):
        search.answers(["  "])


def test_the_command_shows_places_and_lines_that_a_terminal_can_show(trained, capfd):
    code, out, _ = run(capfd, trained / "exported", "merge sorted lists", "escape text", "-k", "1")
    assert code == 0
    assert "  1. shelf.merge" in out
    assert f"{trained / 'packages' / 'shelf.py'}:2" in out.replace("\n", "")
    assert "def merge(*iterables):" in out
    assert "\x1b" not in out
    assert printable("a\x1b[31mb\u202e") == "a\ufffd[31mb\ufffd"
    assert excerpt("\n".join("abcdefgh")) == [*"abcdef", "…"]


def test_the_command_reads_queries_and_prints_one_json_object(trained, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("merge sorted lists\n\n take word7 \n"))
    code, out, _ = run(capfd, trained / "exported", "-", "-k", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert [line["query"] for line in found["queries"]] == ["merge sorted lists", "take word7"]
    first = found["queries"][0]["answers"][0]
    assert (first["id"], first["line"], first["rank"]) == ("shelf.merge", 2, 1)


def test_a_run_is_searched_as_its_export_is(trained, capfd):
    words = ("merge sorted lists", "-k", "3", "--json", "--step", "4")
    run_answers = json.loads(run(capfd, trained / "run", *words)[1])
    exported = json.loads(run(capfd, trained / "exported", *words[:-2])[1])
    assert run_answers["version"] == exported["version"]
    assert run_answers["queries"] == exported["queries"]


def test_a_run_is_encoded_by_its_first_search_alone(trained, tmp_path, capfd):
    shutil.copytree(trained / "run", tmp_path / "run", ignore=shutil.ignore_patterns("search"))
    shutil.copytree(trained / "packages", tmp_path / "packages")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(trained), str(tmp_path)))
    words = (tmp_path / "run", "merge sorted lists", "--json")
    first = run(capfd, *words, "--step", "2")[1]
    (kept,) = (tmp_path / "run" / "search").iterdir()
    assert kept.name.startswith("step-0000000002-")
    (kept / "weights.safetensors").write_bytes(b"damaged")
    assert run(capfd, *words, "--step", "2")[1] == first  # written again
    shutil.rmtree(tmp_path / "packages")
    assert run(capfd, *words, "--step", "2")[1] == first
    code, _, err = run(capfd, *words, "--step", "4")
    assert (code, "packages" in err) == (2, True)  # of another step, they must be encoded


def test_an_index_follows_the_model_by_its_budget(trained, tmp_path, capfd):
    words = ["merge sorted lists", "-k", "3", "--index", tmp_path / "index", "--json"]
    made = json.loads(run(capfd, trained / "earlier", *words)[1])
    assert made["index"] == {
        "folder": str(tmp_path / "index"), "num_encoded": 0, "num_items": 60, "num_stale": 0,
    }  # fmt: skip
    later = json.loads(run(capfd, trained / "exported", *words, "--refresh", "10")[1])
    assert later["index"]["num_encoded"] == 10
    assert later["index"]["num_stale"] == 50
    versions = {answer["version"] for answer in later["queries"][0]["answers"]}
    assert versions == {later["version"]}  # what was asked for was encoded first
    last = json.loads(run(capfd, trained / "exported", *words, "--refresh", "60", "--repair")[1])
    assert last["index"]["num_stale"] == 0
    plain = json.loads(run(capfd, trained / "exported", *words[:3], "--json")[1])
    assert [a["id"] for a in last["queries"][0]["answers"]] == [
        a["id"] for a in plain["queries"][0]["answers"]
    ]


def test_items_that_a_model_lacks_leave_the_index_and_new_ones_join_it(trained, tmp_path):
    search = TextSearch(trained / "exported")
    with ItemIndex.create(tmp_path / "index", 64) as index:
        index.write(["gone", "shelf.merge"], torch.zeros(2, 64), "old")
    with search.open_index(tmp_path / "index") as index:
        assert index.versions() == {"old": 1, search.version: 59}
        assert "gone" not in index


def test_what_cannot_be_searched_is_refused_in_one_line(trained, tmp_path, capfd):
    for words, line in [
        ((trained / "exported", "x", "-k", "0"), "-k must be >= 1"),
        ((trained / "exported", "x", "--refresh", "3"), "name it with --index"),
        ((trained / "exported", ""), "an empty query finds nothing"),
        ((tmp_path, "x"), "holds no exported model"),
    ]:
        code, _, err = run(capfd, *words)
        assert code == 2
        assert line in err.replace("\n", " ")
    code, _, err = run(capfd, trained / "exported", "merge \udcff")  # the byte 255, as an argument
    assert code == 2
    assert r"the query 'merge \udcff' is not UTF-8" in err.replace("\n", " ")
    with ItemIndex.create(tmp_path / "index", 3):
        pass
    code, _, err = run(capfd, trained / "exported", "x", "--index", tmp_path / "index")
    assert code == 2
    assert "an index of dim 3, but vectors have dim 64" in err.replace("\n", " ")


@contextmanager
def served(folder, **settings):
    """A server on a port of its own, which is yielded."""
    app = serving.make_app(folder, max_rows=3, max_bytes=1000, **settings)
    made = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=made.run)
    thread.start()
    while not made.started:
        assert thread.is_alive()
    try:
        yield made.servers[0].sockets[0].getsockname()[1]
    finally:
        made.should_exit = True
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(trained):
    with served(trained / "exported") as port:
        yield port


def ask(port, method, path, content=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, None if content is None else json.dumps(content))
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def test_the_server_answers_as_the_command_does(server, trained, capfd):
    words = ("merge sorted lists", "-k", "2", "--json")
    expected = json.loads(run(capfd, trained / "exported", *words)[1])["queries"]
    status, body, _ = ask(server, "GET", "/search?q=merge+sorted+lists&k=2")
    assert (status, json.loads(body)["queries"]) == (200, expected)
    asked = {"queries": ["merge sorted lists"], "k": 2}
    status, body, _ = ask(server, "POST", "/search", asked)
    assert (status, json.loads(body)["queries"]) == (200, expected)
    status, body, _ = ask(server, "GET", "/health")
    assert json.loads(body)["items"] == 60


def test_the_page_needs_nothing_from_elsewhere_and_may_run_nothing_else(server):
    status, body, headers = ask(server, "GET", "/")
    page = body.decode()
    assert status == 200
    assert "innerHTML" not in page
    assert "http" not in page
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; style-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("content", "status", "line"),
    [
        ({"queries": "x"}, 422, "expected {"),
        ({"queries": ["x", 1]}, 422, "a query must be a text"),
        ({"queries": [" "]}, 422, "a query must be a text"),
        ({"queries": ["\ud800"]}, 422, "a query must be a text"),
        ({"queries": ["x"], "k": 101}, 422, "k must be a whole number from 1 to 100"),
        ({"queries": ["x"] * 4}, 413, "4 queries, but at most 3 per request"),
        ({"queries": ["x" * 1200]}, 413, "more than 1,000 bytes"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused_in_one_line(server, content, status, line):
    found, body, _ = ask(server, "POST", "/search", content)
    assert found == status
    assert line in json.loads(body)["error"]


def test_other_numbers_and_bodies_are_refused():
    assert checked(["a"], "7", 1) == (["a"], 7)
    for k in (True, "0", "-1", "²", "9" * 30, 1.5, None):
        with pytest.raises(RequestError, match="k must be"):
            checked(["a"], k, 1)
    with pytest.raises(RequestError, match="is not JSON"):
        parse_queries(b"{", 1)


def test_a_server_sees_what_a_writer_writes_to_an_index(trained, tmp_path):
    old, new = (TextSearch(trained / name) for name in ("earlier", "exported"))
    query = "merge sorted lists"

    def asked(port):
        status, body, _ = ask(port, "GET", "/search?q=merge+sorted+lists&k=3")
        assert status == 200
        found = json.loads(body)
        return found["index"], found["queries"][0]["answers"]

    with (
        old.open_index(tmp_path / "index") as index,
        served(trained / "exported", index=tmp_path / "index") as port,
    ):
        facts, answers = asked(port)
        assert facts == {"num_items": 60, "num_stale": 60}
        assert {answer["version"] for answer in answers} == {old.version}
        index.refresh(new.encode, new.version, 60)
        facts, answers = asked(port)
        assert facts == {"num_items": 60, "num_stale": 0}
        (expected,) = new.answers([query], 3)
        assert [answer["id"] for answer in answers] == [one.id for one in expected]
        assert [answer["score"] for answer in answers] == pytest.approx(
            [one.score for one in expected], abs=1e-5
        )
        vector = 2 * new.model.encode_query_texts([query])
        index.write(["an item of tomorrow"], vector, new.version)
        _, answers = asked(port)
        assert (answers[0]["id"], answers[0]["text"]) == ("an item of tomorrow", "")
        assert json.loads(ask(port, "GET", "/health")[1])["items"] == 61
        assert index.asked(["an item of tomorrow"]) == [0]
        manifest = tmp_path / "index" / "manifest.json"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[:-9])
        facts, again = asked(port)
        assert "manifest.json is damaged" in facts["problem"]
        assert again == answers
        manifest.write_bytes(whole)
        index.delete(["an item of tomorrow"])
        assert asked(port)[0] == {"num_items": 60, "num_stale": 0}


def test_an_index_that_cannot_be_served_is_refused_in_one_line(trained, tmp_path, capfd):
    with ItemIndex.create(tmp_path / "index", 3):
        pass
    for words, line in [
        ((tmp_path / "index",), "an item index has vectors, and no model to encode queries"),
        ((trained / "exported", "--index", tmp_path / "index"), "an index of dim 3, but vectors"),
        ((trained / "exported", "--index", tmp_path), "holds no item index"),
    ]:
        with pytest.raises(SystemExit) as left:
            main(["serve", "--port", "0", *map(str, words)])
        assert left.value.code == 2
        assert line in capfd.readouterr().err.replace("\n", " ")
