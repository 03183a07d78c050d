"""A small HTTP endpoint for an exported model: rows in and probabilities out, or search.

Text models are searched: see `outsize.export.search_serving`. For click models,
`POST /predict` takes a list of objects, or an object of lists, of raw values. `GET /health` tells
that the model is loaded. Errors are `{"error": …}` with one line: 400 for what is not JSON, 413 for
too many bytes or rows, 422 for rows that cannot be scored, 503 if too many requests wait.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import ConfigError, DataError, one_line
from outsize.export.batching import BatchingScorer, FullError, Row
from outsize.export.format import holds_export, read_config
from outsize.export.http_requests import RequestError, answer_errors, body_of, require_limits
from outsize.export.load import load_exported
from outsize.export.predicting import RowScorer, serving_recipe
from outsize.export.search_serving import make_search_app
from outsize.models import ClickModel
from outsize.search.manifest import MANIFEST
from outsize.text_bytes import is_text

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

_NEEDED = ("starlette", "uvicorn")


def require_server() -> None:
    """Raise a `ConfigError` if the packages of the server are not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving needs {' and '.join(missing)}: pip install 'outsize[serve]'")


def make_app(
    folder: str | Path,
    *,
    max_rows: int = 10_000,
    max_bytes: int = 10_000_000,
    max_waiting: int = 64,
    index: str | Path | None = None,
) -> Starlette:
    """The ASGI application that scores raw rows with a click model, or searches with a text model.

    Args:
        folder: The export.
        max_rows: Rows per request, and per batch of requests that wait together; or queries.
        max_bytes: Bytes per request; reading stops there.
        max_waiting: Requests that may wait for the model; more are refused.
        index: Of a text model, the folder of an item index to search instead of the vectors of the
            export; opened read-only, and read again when it changes.
    """
    require_server()
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from outsize.data.encoding.rows import wanted_columns

    require_limits(max_rows, max_bytes, max_waiting)
    _require_no_index(Path(folder))
    if read_config(Path(folder)).get("texts") is not None:
        return make_search_app(
            folder,
            max_queries=max_rows,
            max_bytes=max_bytes,
            max_waiting=max_waiting,
            index=index,
        )
    if index is not None:
        raise ConfigError(f"an item index is searched with texts, but {folder} is not a text model")
    model = load_exported(folder)
    if not isinstance(model, ClickModel) or not isinstance(model.predictor, RowScorer):
        raise ConfigError(
            f"{folder} cannot be served: only click models that were trained on files take raw "
            "rows, and only text models are searched"
        )
    wanted = wanted_columns(serving_recipe(model.predictor.encoder.recipe))
    scorer = BatchingScorer(lambda rows: _predict(model, rows), max_rows, max_waiting)

    async def predict(request: Request) -> JSONResponse:
        rows = parse_rows(await body_of(request, max_bytes), max_rows)
        _require_columns(rows, wanted)
        try:
            scores = await asyncio.wrap_future(scorer.submit(rows))
        except FullError as error:
            raise RequestError(503, str(error)) from None
        except DataError as error:
            raise RequestError(422, str(error)) from None
        return JSONResponse({"probabilities": scores.tolist()})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "model": str(Path(folder).resolve().name)})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(scorer.close)

    routes = [
        Route("/predict", predict, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers=answer_errors(), lifespan=lifespan)


def _require_no_index(folder: Path) -> None:
    """Tell the folder of an item index from that of an export."""
    if (folder / MANIFEST).is_file() and not holds_export(folder):
        raise ConfigError(
            f"{folder} is not an export; an item index has vectors, and no model to encode queries"
            ": serve the export of its model, with --index for the index"
        )


def serve(
    folder: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    max_rows: int = 10_000,
    max_bytes: int = 10_000_000,
    index: str | Path | None = None,
    listening: Callable[[str], None] | None = None,
) -> None:
    """Serve an exported model until SIGINT or SIGTERM; requests under way are answered.

    Args:
        folder: The export.
        host: The address to listen on.
        port: The port to listen on; 0 takes a free one.
        max_rows: Rows per request.
        max_bytes: Bytes per request.
        index: As for `make_app`.
        listening: Told the URL once clients can connect.
    """
    require_server()
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Stop on signals, without raising them again afterwards."""
            stops = (signal.SIGINT, signal.SIGTERM)
            before = {stop: signal.signal(stop, self.handle_exit) for stop in stops}
            try:
                yield
            finally:
                for stop, handler in before.items():
                    signal.signal(stop, handler)

    with _listen(host, port) as listener:
        app = make_app(folder, max_rows=max_rows, max_bytes=max_bytes, index=index)
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=10, access_log=False
        )
        if listening is not None:
            shown = f"[{host}]" if ":" in host else host
            listening(f"http://{shown}:{listener.getsockname()[1]}")
        Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # asyncio does not set it on such sockets, and answers of two writes would wait for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port"
        ) from None


def parse_rows(body: bytes, max_rows: int) -> list[Row]:
    """The rows of a request: a list of objects, or an object of equally long lists."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {one_line(error)[:200]}") from None
    if isinstance(content, dict):
        content = _from_columns(content)
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise RequestError(422, "expected a list of objects, or an object of lists")
    if len(content) > max_rows:
        raise RequestError(413, f"{len(content):,} rows, but at most {max_rows:,} per request")
    for number, row in enumerate(content):
        for name, value in row.items():
            if isinstance(value, dict | list):
                raise RequestError(
                    422,
                    f"row {number} (counted from 0): {name!r:.80} is not text, a number or null",
                )
            if not is_text(name) or (isinstance(value, str) and not is_text(value)):
                raise RequestError(
                    422,
                    f"row {number} (counted from 0): {name!r:.80} is half of a surrogate pair, or "
                    "has one: send valid text",
                )
    return content


def _require_columns(rows: list[Row], wanted: Sequence[str]) -> None:
    """Raise unless each column occurs: in a batch, rows of other requests may have it."""
    found = {name for row in rows for name in row}
    for name in wanted:
        if rows and name not in found:
            raise RequestError(422, f"the rows have no column {name!r:.80}")


def _from_columns(content: dict[str, Any]) -> list[Row]:
    lengths = set()
    for name, values in content.items():
        if not isinstance(values, list):
            raise RequestError(422, f"column {name!r:.80} is not a list: give a list of values")
        lengths.add(len(values))
    if len(lengths) > 1:
        raise RequestError(422, "the columns differ in length")
    return [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]


def _predict(model: ClickModel, rows: list[Row]) -> Any:
    with warnings.catch_warnings():  # of unknown values: nobody would read them
        warnings.simplefilter("ignore")
        return model.predict(rows)
