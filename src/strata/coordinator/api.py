"""The HTTP API: what is shown, the live stream of changes, and a few actions. Every answer is made in `views`.

Reads wait until what they show is durable. Whoever may read is decided by the token; actions need one in any case, so
that no page in a browser can press a button of a coordinator that was started without.
"""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from fastapi import Body, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from strata.coordinator import metrics
from strata.coordinator.auth import Tokens
from strata.coordinator.events import EventView, event_id, index_of
from strata.coordinator.paging import Key, page
from strata.coordinator.streams import Watcher, index_after, is_known
from strata.coordinator.views import (
    PULSE_SECONDS,
    BarriersView,
    CheckpointView,
    CoordinatorView,
    DashboardView,
    DatasetView,
    JobView,
    MetricsView,
    Views,
    WorkerView,
)
from strata.core.events import DrainRequested, Event, SaveRequested, StopRequested
from strata.core.ids import ID_PATTERN
from strata.core.shapes import MAX_TEXT
from strata.errors import Conflict, InvalidInput, NotFound, StrataError
from strata.logs import get_logger
from strata.rpc import RpcError
from strata.rpc.limits import Rate
from strata.texts import printable, printable_json

logger = get_logger("strata.coordinator")

ID = f"^{ID_PATTERN}$"
OPEN_PATHS = ("/healthz", "/readyz")
BODY_BYTES = 64 << 10
REQUESTS_PER_SECOND = 100
"""From one address: reads of a large job are work."""
CALLERS_KEPT = 4096
PAGE_MOST = 1000

JobId = Annotated[str, Path(pattern=ID, description="The job's id.")]
WorkerId = Annotated[str, Path(pattern=ID, description="The worker's id.")]
OneJob = Annotated[str | None, Query(pattern=ID, description="Only this job; all of them if absent.")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MOST, description="At most so many items.")]
Cursor = Annotated[str, Query(max_length=512, description="Where to go on: `next_cursor` of the page before.")]


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """A part of a list. `next_cursor` is null after the last."""

    items: list[T]
    next_cursor: str | None


class Problem(BaseModel):
    """Why there is no other answer. `code` is for programs, `message` for people."""

    code: str
    message: str


class Reason(BaseModel):
    """Why, for people to read."""

    model_config = {"extra": "forbid", "strict": True}
    reason: Annotated[str, Field(max_length=MAX_TEXT)] = ""


class Stop(Reason):
    without_checkpoint: bool = False


class Done(BaseModel):
    done: bool = True


class SaveAnswer(BaseModel):
    """`step` is where everybody will save, or -1 while that is being agreed."""

    request: int
    step: int


_WRONG: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "The token is missing or not the right one."},
    404: {"model": Problem, "description": "There is no such job or worker."},
    422: {"model": Problem, "description": "The request is wrong in itself."},
    429: {"model": Problem, "description": "Too many requests."},
    503: {"model": Problem, "description": "The coordinator is shutting down."},
}
_REFUSED: dict[int | str, dict[str, Any]] = _WRONG | {
    400: {"model": Problem, "description": "The body is no JSON."},
    403: {"model": Problem, "description": "Actions need a token, and this coordinator has none."},
    409: {"model": Problem, "description": "The state of the job does not allow it."},
    413: {"model": Problem, "description": "The body is too long."},
}


def api(views: Views, tokens: Tokens, is_ready: Callable[[], bool], *, knows_clients: bool = False) -> FastAPI:
    """The application, for any ASGI server. `knows_clients`: they prove themselves before they get here."""
    app = FastAPI(
        title="Strata coordinator",
        version="1",
        description="The state of training jobs, live, and a few actions.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    _guard(app, tokens, knows_clients=knows_clients)
    _add_health(app, views, is_ready)
    _add_reads(app, views)
    _add_stream(app, views, tokens)
    _add_actions(app, views)
    return app


# -- who and what is let in --------------------------------------------------------------------------------------------


def _too_often(callers: dict[str, Rate], request: Request) -> bool:
    caller = "" if request.client is None else request.client.host
    rate = callers.get(caller)
    if rate is None:
        if len(callers) >= CALLERS_KEPT:
            callers.clear()
        rate = callers[caller] = Rate(REQUESTS_PER_SECOND, 1.0)
    return request.scope["path"] not in OPEN_PATHS and rate.exceeded(time.monotonic())


def _body_bytes(request: Request) -> int:
    """As it says itself; a body that comes in chunks may have any length, whatever is said beside."""
    said = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers:
        return BODY_BYTES + 1
    return int(said) if said.isdecimal() else BODY_BYTES + 1


def _guard(app: FastAPI, tokens: Tokens, *, knows_clients: bool) -> None:
    callers: dict[str, Rate] = {}

    @app.middleware("http")
    async def check(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if _too_often(callers, request):
            return _problem(429, "too_many", f"at most {REQUESTS_PER_SECOND} requests a second are taken here")
        if request.scope["path"] not in OPEN_PATHS and not tokens.accept(request.headers.get("authorization")):
            given = "authorization" in request.headers
            why = "the token is not the right one" if given else "this coordinator wants its bearer token"
            problem = _problem(401, "unauthenticated", f"{why}: set STRATA_TOKEN to the coordinator's")
            problem.headers["www-authenticate"] = "Bearer"
            return problem
        if request.method == "POST":
            if not tokens and not knows_clients:
                return _problem(403, "no_token", "actions need a token: start the coordinator with STRATA_TOKEN set")
            if _body_bytes(request) > BODY_BYTES:
                return _problem(413, "too_long", f"give a body of at most {BODY_BYTES:,} bytes, and its length")
        return await go_on(request)

    @app.exception_handler(StrataError)
    async def refused(request: Request, error: StrataError) -> Response:
        try:
            await app.state.settled()
        except RpcError as gone:
            error = gone
        return _problem(_status(error), error.code, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        if error.body is not None and "json" not in request.headers.get("content-type", ""):
            told = f"a body must come with the header content-type: application/json ({told})"
        return _problem(422, "invalid_input", told)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        problem = _problem(error.status_code, "http", str(error.detail))
        for name, value in (error.headers or {}).items():
            problem.headers[name] = value
        return problem


def _status(error: StrataError) -> int:
    if isinstance(error, RpcError):
        return 503
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, InvalidInput):
        return 422
    return 409 if isinstance(error, Conflict) or error.code == "refused" else 500


def _problem(status: int, code: str, message: str) -> Response:
    return _json({"code": code, "message": printable(message)}, status)


def _json(value: object, status: int = 200) -> Response:
    return Response(printable_json(msgspec.json.encode(value)), status, media_type="application/json")


# -- reads -------------------------------------------------------------------------------------------------------------


def _add_health(app: FastAPI, views: Views, is_ready: Callable[[], bool]) -> None:
    app.state.settled = views.hub.settled

    @app.get("/healthz", tags=["health"], response_model=Done, summary="Whether the process lives")
    async def healthz() -> Response:
        return _json({"done": True})

    app.add_api_route("/healthz", healthz, methods=["HEAD"], include_in_schema=False)
    not_ready: dict[int | str, dict[str, Any]] = {503: {"model": Problem, "description": "Not yet, or no longer."}}

    @app.get("/readyz", tags=["health"], response_model=Done, responses=not_ready, summary="Whether it serves")
    async def readyz() -> Response:
        return _json({"done": True}) if is_ready() else _problem(503, "not_ready", "not yet, or no longer")

    app.add_api_route("/readyz", readyz, methods=["HEAD"], include_in_schema=False)

    @app.get(
        "/metrics",
        tags=["health"],
        summary="Numbers for Prometheus",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            401: _WRONG[401],
            429: _WRONG[429],
        },
    )
    async def prometheus() -> Response:
        body = metrics.exposition(views)
        await views.hub.settled()
        return Response(body, media_type=metrics.CONTENT_TYPE)


def _add_reads(app: FastAPI, views: Views) -> None:
    async def shown(value: object) -> Response:
        await views.hub.settled()
        return _json(value)

    async def paged(
        items: Iterable[T],
        key: Callable[[T], Key],
        cursor: str,
        limit: int,
        make: Callable[[T], object] = lambda item: item,
    ) -> Response:
        found, more = page(items, key, cursor, limit)
        return await shown({"items": [make(item) for item in found], "next_cursor": more})

    @app.get("/api/dashboard", tags=["state"], response_model=DashboardView, responses=_WRONG, summary="Everything")
    @app.get("/api/v1/dashboard", tags=["state"], response_model=DashboardView, responses=_WRONG, summary="Everything")
    async def dashboard(job: OneJob = None, limit: Limit = PAGE_MOST) -> Response:
        return await shown(views.dashboard(job, limit))

    @app.get("/api/v1/coordinator", tags=["state"], response_model=CoordinatorView, responses=_WRONG)
    async def coordinator() -> Response:
        return await shown(views.coordinator())

    @app.get("/api/v1/metrics", tags=["state"], response_model=MetricsView, responses=_WRONG)
    async def numbers(job: OneJob = None) -> Response:
        return await shown(views.metrics(job))

    @app.get("/api/v1/jobs", tags=["state"], response_model=Page[JobView], responses=_WRONG)
    async def jobs(cursor: Cursor = "", limit: Limit = 100) -> Response:
        return await paged(views.jobs(), lambda each: (each.job_id,), cursor, limit)

    @app.get("/api/v1/workers", tags=["state"], response_model=Page[WorkerView], responses=_WRONG)
    async def workers(job: OneJob = None, cursor: Cursor = "", limit: Limit = 100) -> Response:
        return await paged(views.workers_by_key(job), lambda each: each[0], cursor, limit, lambda each: each[1]())

    @app.get("/api/v1/datasets", tags=["state"], response_model=Page[DatasetView], responses=_WRONG)
    async def datasets(job: OneJob = None, cursor: Cursor = "", limit: Limit = 100) -> Response:
        return await paged(views.datasets(job), lambda each: (each.job_id, each.dataset_id), cursor, limit)

    @app.get("/api/v1/checkpoints", tags=["state"], response_model=Page[CheckpointView], responses=_WRONG)
    async def checkpoints(job: OneJob = None, cursor: Cursor = "", limit: Limit = 100) -> Response:
        return await paged(views.checkpoints(job), lambda each: (each.job_id, -each.attempt), cursor, limit)

    @app.get("/api/v1/barriers", tags=["state"], response_model=BarriersView, responses=_WRONG)
    async def barriers(job: OneJob = None) -> Response:
        return await shown(views.barriers(job))

    @app.get("/api/v1/events", tags=["state"], response_model=Page[EventView], responses=_WRONG)
    async def past_events(job: OneJob = None, cursor: Cursor = "", limit: Limit = 100) -> Response:
        """The newest first."""
        return await paged(views.all_events(job), lambda each: (-(index_of(each.id) or 0),), cursor, limit)


# -- the live stream ---------------------------------------------------------------------------------------------------


def _add_stream(app: FastAPI, views: Views, tokens: Tokens) -> None:
    @app.get(
        "/api/v1/stream",
        tags=["live"],
        summary="Changes as they happen, as server-sent events",
        response_class=StreamingResponse,
        responses=_WRONG
        | {
            200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
            503: {"model": Problem, "description": "The coordinator is shutting down, or too many watch already."},
        },
    )
    async def stream(
        request: Request,
        job: OneJob = None,
        after: Annotated[str, Query(max_length=64, description="Like Last-Event-ID.")] = "",
        last_event_id: Annotated[str, Header(max_length=64)] = "",
    ) -> StreamingResponse:
        """`snapshot`: everything, at the beginning, unless the last event's id is still known. `event`: one thing that
        happened. `pulse`: the numbers and explanations, every second."""
        if job is not None:
            views.hub.machine.state.job(job)
        given = request.headers.get("authorization")
        return Live(views, job, last_event_id or after, lambda: tokens.accept(given))


class Live(StreamingResponse):
    """What happens, to one who watches. That there is no room for one more is told before anything is sent."""

    def __init__(self, views: Views, job: str | None, last: str, is_welcome: Callable[[], bool]) -> None:
        self._views, self._job, self._is_welcome = views, job, is_welcome
        hub = views.hub
        after, opening = index_after(hub, last), b""
        if not is_known(hub, last):
            # What is on its way to the disk is in the snapshot, and is waited for with it.
            after = hub.machine.index - 1
            opening = _sent("snapshot", views.dashboard(job, PAGE_MOST), event_id(hub.machine.state.term, after))
        self._watcher = Watcher(hub, after, job or "")
        super().__init__(self._told(opening), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watcher.close()

    async def _told(self, opening: bytes) -> AsyncIterator[bytes]:
        """Ends when the reader fell behind or the coordinator goes: whoever comes again says where it was."""
        try:
            async for each in self._live(opening):
                yield each
        except RpcError as error:
            logger.info("a reader of the live stream is let go: %s", error)

    async def _live(self, opening: bytes) -> AsyncIterator[bytes]:
        hub = self._views.hub
        if opening:
            await hub.settled()
            yield opening
        due = hub.clock() + PULSE_SECONDS
        while not hub.is_closed and self._is_welcome():
            for event in await self._watcher.some(max(0.0, due - hub.clock())):
                yield _sent("event", event, event.id)
            if hub.clock() >= due:
                due = hub.clock() + PULSE_SECONDS
                pulse = _sent("pulse", self._views.pulse(self._job))
                await hub.settled()
                yield pulse


def _sent(kind: str, value: object, event: str = "") -> bytes:
    data = printable_json(msgspec.json.encode(value))
    return b"".join((f"id: {event}\n".encode() if event else b"", f"event: {kind}\ndata: ".encode(), data, b"\n\n"))


# -- actions -----------------------------------------------------------------------------------------------------------


def _add_actions(app: FastAPI, views: Views) -> None:
    async def ask(event: Event) -> Any:
        answer = views.hub.ask(event)
        await views.hub.settled()
        return answer

    @app.post("/api/v1/jobs/{job}/checkpoint", tags=["actions"], response_model=SaveAnswer, responses=_REFUSED)
    async def checkpoint(job: JobId, body: Annotated[Reason | None, Body()] = None) -> Response:
        """Ask for a checkpoint at a step that every rank agrees to."""
        answer = await ask(SaveRequested(job, (body or Reason()).reason))
        return _json({"request": answer.request, "step": answer.step})

    @app.post("/api/v1/jobs/{job}/stop", tags=["actions"], response_model=Done, responses=_REFUSED)
    async def stop(job: JobId, body: Annotated[Stop | None, Body()] = None) -> Response:
        """Tell all workers of a job to stop, after one more checkpoint unless that is not wanted."""
        said = body or Stop()
        await ask(StopRequested(job, said.reason, not said.without_checkpoint))
        return _json({"done": True})

    @app.post("/api/v1/jobs/{job}/workers/{worker}/drain", tags=["actions"], response_model=Done, responses=_REFUSED)
    async def drain(job: JobId, worker: WorkerId, body: Annotated[Reason | None, Body()] = None) -> Response:
        """Take a worker out in good order."""
        await ask(DrainRequested(job, worker, (body or Reason()).reason))
        return _json({"done": True})


def openapi_json(app: FastAPI) -> str:
    """The description as a text that can be compared."""
    return json.dumps(app.openapi(), indent=2, sort_keys=True) + "\n"
