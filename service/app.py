"""Puts the parts together; the only file that knows them all."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse, Response

from model.checkpoint.load import LoadedModel
from model.errors import CheckpointError
from model.run import run
from service.admission import Admission, Admitting
from service.batcher import Batcher, Budget
from service.errors import FieldError, MethodNotAllowed, NotFound, ServiceError, Unprocessable
from service.life import Life, LoadingStopped
from service.loading import RefuseWhileLoading, in_thread, settle
from service.openapi import document
from service.openapi_v2 import SCHEMAS as V2_SCHEMAS
from service.openapi_v2 import fill_examples
from service.parts import Parts
from service.problem import refusal
from service.request_log import RequestLog
from service.routes import forward, health, model, v2
from service.settings import Settings
from service.ticket import Ticket
from service.warm_up import Nobody, WarmUp, rows_of_nobody, warm_up
from service.wire.v2_request import LENGTH_HEADER

log = logging.getLogger("headwater.app")

_LAST_SECONDS = 1.0

Load = Callable[[Callable[[str], None]], LoadedModel]
"""Load a model, and say how far it is; what is called with a text may raise, to stop it."""


def create_app(
    settings: Settings,
    load: Load,
    *,
    life: Life | None = None,
    admission: Admission | None = None,
    on_death: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The app around a model that is loaded while it runs.

    Its lifespan begins with the loading, a task at `app.state.loading` that raises nothing: what went wrong is
    `life.failure`. `app.state.parts` is None until then. `on_death` is called in the model thread when that ends before
    it should.
    """
    life, admission = life or Life(), admission or Admission()

    def died() -> None:
        life.die()
        log.critical("the model thread has ended, and the service with it", exc_info=sys.exc_info()[1])
        on_death()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.loading = asyncio.create_task(_start(app, settings, load, life, died))
        yield
        life.drain()
        app.state.loading.cancel()
        parts: Parts | None = app.state.parts
        if parts is not None:
            parts.batcher.close()
            # every request has been answered or given up by now, so there is nothing more to wait for
            await asyncio.to_thread(parts.batcher.join, _LAST_SECONDS)
            parts.wire_threads.shutdown(wait=False)

    app: FastAPI = FastAPIOffline(
        title="Headwater",
        version=version("headwater"),
        summary="The output of any layer and the attention map of any head, of a real checkpoint.",
        redoc_url=None,
        # the badge would ask a validator on another host
        swagger_ui_parameters={"validatorUrl": None},
        lifespan=lifespan,
    )
    app.state.parts, app.state.life, app.state.admission = None, life, admission
    app.openapi = lambda: document(app, app.state.parts.model, V2_SCHEMAS, fill_examples)  # type: ignore[method-assign]
    for routes in (forward, model, health, v2):
        app.include_router(routes.router)

    @app.get("/", include_in_schema=False)
    def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    _add_error_handlers(app)
    # the last one added is the outermost
    app.add_middleware(Admitting, admission=admission)
    app.add_middleware(RefuseWhileLoading, life=life)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Manifest", "Server-Timing", "Retry-After", LENGTH_HEADER],
        )
    app.add_middleware(RequestLog)
    return app


async def _start(app: FastAPI, settings: Settings, load: Load, life: Life, died: Callable[[], None]) -> None:
    """Load the model, warm it up, and put the parts together; what goes wrong is the life's failure."""
    try:
        loaded = await asyncio.wrap_future(in_thread(lambda: load(life.report), "headwater-loader"))
        app.state.parts = await _parts(settings, loaded, life, died)
        life.ready()
    except LoadingStopped:
        pass
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if not isinstance(error, CheckpointError):
            log.critical("the model could not be loaded", exc_info=error)
        life.fail(error)


async def _parts(settings: Settings, loaded: LoadedModel, life: Life, died: Callable[[], None]) -> Parts:
    """The model thread, warmed up, and what the routes need beside it."""

    def run_rows(rows: int) -> None:
        life.report(f"a first pass of {rows} rows")
        run(loaded.stack, [rows_of_nobody(loaded.config, rows)], [Nobody()])

    def run_batch(tickets: Sequence[Ticket]) -> None:
        run(loaded.stack, [ticket.sequence for ticket in tickets], list(tickets))

    # LIMITS, first part: max_batch_tokens as it is tried out is computed here
    wanted, on_gpu = settings.max_batch_tokens, loaded.stack.device.type == "cuda"
    warming: Future[WarmUp] = Future()
    batcher = Batcher(
        run_batch,
        Budget(wanted),
        first=lambda: settle(warming, lambda: warm_up(run_rows, wanted, largest_too=on_gpu)),
        on_death=died,
    )
    batcher.start()
    try:
        warmed = await asyncio.wrap_future(warming)
    except BaseException:
        batcher.close()
        raise
    # LIMITS, second part: the budgets in force, from settings, loaded.config, available_bytes(settings.device) and the
    # speed, are computed here, before any request is taken
    batcher.budget = Budget(warmed.max_batch_tokens)
    in_force = settings.model_copy(update={"max_batch_tokens": warmed.max_batch_tokens})
    return Parts(in_force, loaded, batcher, warmed.tokens_per_second)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ServiceError)
    async def refused(request: Request, error: ServiceError) -> Response:
        request.state.log["code"] = error.code
        return refusal(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = [
            FieldError("/" + "/".join(map(str, one["loc"][1:])), f"{one['msg']}, not {one['input']!r:.40}")
            for one in error.errors()
        ]
        detail = "; ".join(f"{field.pointer}: {field.message}" for field in fields)
        return await refused(request, Unprocessable(detail, *fields))

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        path, method = request.url.path[:200], request.method
        if error.status_code == 405:
            response = await refused(request, MethodNotAllowed(f"{path} has no method {method}"))
            response.headers.update(error.headers or {})
            return response
        return await refused(request, NotFound(f"there is no {path}"))
