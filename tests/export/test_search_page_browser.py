"""The search page in a real browser, as wide as a desk's and as a phone's."""

import shutil

import pytest
from test_text_search import served, trained  # noqa: F401

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
QUERY = "merge sorted lists"


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except api.Error:
            pytest.skip("no Chromium that playwright can start")
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser):
    """Opens a page of some width; what its console complains about is in `complaints`."""
    contexts = []

    def opened(url, width):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}))
        page = contexts[-1].new_page()
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda line: page.complaints.append(line.text)
                if line.type in ("error", "warning") else None)  # fmt: skip
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def port(trained):  # noqa: F811
    with served(trained / "exported") as found:
        yield found


def asked(page, query):
    page.get_by_label("Query").fill(query)
    page.get_by_role("button", name="Search").click()
    page.get_by_text("10 answers").wait_for()
    return page.locator("#answers li")


@pytest.mark.parametrize("width", [1200, 390])
def test_a_query_is_answered_and_nothing_is_wider_than_the_window(open_page, port, width):
    page = open_page(f"http://127.0.0.1:{port}/", width)
    page.get_by_role("heading", name="Search exported: 60 items").wait_for()
    answers = asked(page, QUERY)
    assert answers.count() == 10
    first = answers.first
    assert first.locator(".id").inner_text() == "shelf.merge"
    assert first.locator(".place").inner_text().endswith("shelf.py:2")
    assert "def merge(*iterables):" in first.locator("pre").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    boxes = [page.locator(name).bounding_box() for name in ("#query", "button")]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    assert boxes[0]["width"] > width / 2
    assert page.complaints == []


def test_a_link_brings_the_same_answers_and_keys_are_enough(open_page, port):
    page = open_page(f"http://127.0.0.1:{port}/", 390)
    page.wait_for_function("document.activeElement.id === 'query'")  # it gets the focus by itself
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    page.get_by_text("10 answers").wait_for()
    shown = page.locator("#answers").inner_text()
    linked = open_page(page.url, 1200)
    linked.get_by_text("10 answers").wait_for()
    assert linked.get_by_label("Query").input_value() == QUERY
    assert linked.locator("#answers").inner_text() == shown
    assert page.complaints == linked.complaints == []


def test_texts_are_shown_as_texts_and_a_server_that_is_gone_is_named(open_page, trained):  # noqa: F811
    with served(trained / "exported") as port:
        page = open_page(f"http://127.0.0.1:{port}/", 390)
        asked(page, "<img src=x onerror=alert(1)>")
        assert page.locator("#answers img").count() == 0
        assert page.complaints == []
    page.get_by_role("button", name="Search").click()
    page.get_by_text("The server does not answer.").wait_for()
    assert page.locator("#answers li").count() == 0
