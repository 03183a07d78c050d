"""Search over HTTP with an exported text model: a page to type into, and JSON.

`GET /` is the page. `GET /search?q=TEXT&k=10` and `POST /search` with `{"queries": [TEXT, …],
"k": 10}` answer as `outsize search --json` does. `GET /health` tells that the model is loaded.
Errors are as in `outsize.export.serving`. With an item index, each request sees its newest state.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import ConfigError
from outsize.export.http_requests import RequestError, answer_errors, body_of, require_limits
from outsize.export.index_reader import IndexReader
from outsize.export.text_search import Answer, TextSearch
from outsize.text_bytes import is_text

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

_PAGE = Path(__file__).with_name("search_page.html")
_MOST_ANSWERS, _LONGEST_QUERY = 100, 10_000


def make_search_app(
    folder: str | Path,
    *,
    max_queries: int,
    max_bytes: int,
    max_waiting: int,
    index: str | Path | None = None,
) -> Starlette:
    """The ASGI application that searches with an exported text model.

    Args:
        folder: The export.
        max_queries: Queries per request.
        max_bytes: Bytes per request; reading stops there.
        max_waiting: Requests that may wait for the model; more are refused.
        index: The folder of an item index to search, instead of the vectors of the export. It is
            opened read-only; each request sees what a writer has written before.
    """
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse
    from starlette.routing import Route

    require_limits(max_queries, max_bytes, max_waiting)
    engine = TextSearch(folder)
    dim = engine.items.vectors.shape[1]
    reader = None if index is None else IndexReader(index, dim, engine.version)
    name = Path(folder).resolve().name
    page = _PAGE.read_text("utf-8")
    headers = {
        "content-security-policy": _policy(page),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    worker = ThreadPoolExecutor(1)  # one search at a time
    waiting = 0

    def search(queries: list[str], k: int) -> tuple[list[list[Answer]], dict[str, Any]]:
        """The answers, and what they were searched in."""
        if reader is None:
            return engine.answers(queries, k), {}
        found = engine.answers(queries, k, reader.newest(), count=False)
        return found, {"index": reader.facts().as_json()}

    def facts() -> dict[str, Any]:
        if reader is None:
            return {"items": len(engine.items.names)}
        reader.newest()
        return {"items": reader.facts().num_items, "index": reader.facts().as_json()}

    async def answer(queries: list[str], k: int) -> JSONResponse:
        nonlocal waiting
        if waiting >= max_waiting:
            raise RequestError(503, f"{waiting} requests wait already: try again later")
        waiting += 1
        try:
            loop = asyncio.get_running_loop()
            found, searched = await loop.run_in_executor(worker, search, queries, k)
        except ConfigError as error:
            raise RequestError(422, str(error)) from None
        finally:
            waiting -= 1
        lists = [[one.as_json() for one in line] for line in found]
        pairs = zip(queries, lists, strict=True)
        shown = [{"query": query, "answers": line} for query, line in pairs]
        known = {"model": name, "version": engine.version, **searched}
        return JSONResponse({**known, "queries": shown})

    async def ask(request: Request) -> JSONResponse:
        query = request.query_params.get("q", "")
        return await answer(*checked([query], request.query_params.get("k", 10), max_queries))

    async def ask_many(request: Request) -> JSONResponse:
        body = await body_of(request, max_bytes)
        return await answer(*parse_queries(body, max_queries))

    async def show(request: Request) -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    async def health(request: Request) -> JSONResponse:
        found = await asyncio.get_running_loop().run_in_executor(worker, facts)
        known = {"status": "ok", "model": name, "version": engine.version}
        return JSONResponse({**known, **found})

    routes = [
        Route("/", show, methods=["GET"]),
        Route("/search", ask, methods=["GET"]),
        Route("/search", ask_many, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers=answer_errors())


def parse_queries(body: bytes, max_queries: int) -> tuple[list[str], int]:
    """The queries and the number of answers of a JSON request."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict) or not isinstance(content.get("queries"), list):
        raise RequestError(422, 'expected {"queries": [text, …], "k": number}')
    return checked(content["queries"], content.get("k", 10), max_queries)


def checked(queries: Sequence[Any], k: Any, max_queries: int) -> tuple[list[str], int]:
    """Queries and the number of answers, refused if they are not what they should be."""
    if len(queries) > max_queries:
        raise RequestError(
            413, f"{len(queries):,} queries, but at most {max_queries:,} per request"
        )
    for query in queries:
        is_good = isinstance(query, str) and query.strip() and is_text(query)
        if not is_good or len(query) > _LONGEST_QUERY:
            raise RequestError(422, f"a query must be a text of 1 to {_LONGEST_QUERY:,} characters")
    if isinstance(k, str) and k.isascii() and k.isdigit():
        k = int(k[:9])
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= _MOST_ANSWERS:
        raise RequestError(422, f"k must be a whole number from 1 to {_MOST_ANSWERS}")
    return list(queries), k


def _policy(page: str) -> str:
    """A content security policy that allows what the page has inside, and nothing else."""
    allowed = {}
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        allowed[kind] = f"{kind}-src 'sha256-{digest}'"
    return (
        f"default-src 'none'; connect-src 'self'; {allowed['style']}; {allowed['script']}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
