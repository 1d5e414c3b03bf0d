"""Puts the parts together; the only file that knows them all."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse, Response

from model.checkpoint.load import LoadedModel
from model.run import run
from model.sequence import Sequence as Rows
from service.batcher import Batcher, Budget
from service.errors import FieldError, MethodNotAllowed, NotFound, ServiceError, Unprocessable
from service.openapi import document
from service.openapi_v2 import SCHEMAS as V2_SCHEMAS
from service.openapi_v2 import fill_examples
from service.parts import Parts
from service.problem import refusal
from service.request_log import RequestLog
from service.routes import forward, health, model, v2
from service.settings import Settings
from service.ticket import Ticket
from service.wire.v2_request import LENGTH_HEADER

_LAST_SECONDS = 1.0
_WARM_UP_ROWS, _WARM_UP_SECONDS = 16, 600.0


def create_app(settings: Settings, loaded: LoadedModel) -> FastAPI:
    """The app around a loaded model; its model thread runs from the app's start to its end."""

    def run_batch(tickets: Sequence[Ticket]) -> None:
        run(loaded.stack, [ticket.sequence for ticket in tickets], list(tickets))

    parts = Parts(settings, loaded, Batcher(run_batch, Budget(settings.max_batch_tokens)))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        parts.batcher.start()
        await _warm_up(parts)
        yield
        parts.batcher.close()
        # every request has been answered or given up by now, so there is nothing more to wait for
        await asyncio.to_thread(parts.batcher.join, _LAST_SECONDS)
        parts.wire_threads.shutdown(wait=False)

    app: FastAPI = FastAPIOffline(
        title="Headwater",
        version=version("headwater"),
        summary="The output of any layer and the attention map of any head, of a real checkpoint.",
        redoc_url=None,
        redirect_slashes=False,
        # the badge would ask a validator on another host
        swagger_ui_parameters={"validatorUrl": None},
        lifespan=lifespan,
    )
    app.state.parts = parts
    app.openapi = lambda: document(app, loaded, V2_SCHEMAS, fill_examples)  # type: ignore[method-assign]
    for routes in (forward, model, health, v2):
        app.include_router(routes.router)

    @app.get("/", include_in_schema=False)
    def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    _add_error_handlers(app)
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


async def _warm_up(parts: Parts) -> None:
    """A small pass through the whole stack, so that the first call is not slow: weights are read, threads made."""
    config = parts.model.config
    rows = np.zeros((_WARM_UP_ROWS, config.d_model), dtype=np.float32)
    now = time.monotonic()
    ticket = Ticket(Rows("x", rows, 0, config.n_layers, ()), now, now + _WARM_UP_SECONDS)
    parts.batcher.submit([ticket])
    await ticket.done


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
