"""Puts the parts together; the only file that knows them all."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse

from model.checkpoint.load import LoadedModel
from model.errors import CheckpointError
from service.admission import UNBOUNDED, Admission
from service.api_keys import ApiKeys
from service.assembly import assemble
from service.entrance import Entrance
from service.error_handlers import add_error_handlers
from service.life import Life, LoadingStopped
from service.loading import RefuseWhileLoading, in_thread
from service.metrics import Metrics
from service.openapi.document import document
from service.parts import Parts
from service.request_log import RequestLog
from service.routes import examples, forward, health, metrics, model, v2
from service.settings import Settings
from service.tracing import open_tracing
from service.wire.v2_request import LENGTH_HEADER

log = logging.getLogger("headwater.app")

_LAST_SECONDS = 1.0

Load = Callable[[Callable[[str], None]], LoadedModel]
"""Load a model, and say how far it is; what is called with a text may raise, to stop it."""


def create_app(
    settings: Settings, load: Load, *, life: Life | None = None, on_death: Callable[[], None] = lambda: None
) -> FastAPI:
    """The app around a model that is loaded while it runs. Raises KeysFileError.

    Its lifespan begins with the loading, a task at `app.state.loading` that raises nothing: what went wrong is
    `life.failure`. `app.state.parts` is None until then. `on_death` is called in the model thread when that ends before
    it should.
    """
    life = life or Life()
    keys = ApiKeys.read(settings.api_keys_file) if settings.api_keys_file else None
    admission = Admission(UNBOUNDED, fair=keys is not None)
    measured = Metrics()
    measured.watch("ready", lambda: float(life.phase == "ready"))
    tracing = open_tracing(os.environ, version("headwater"))

    def died() -> None:
        life.die()
        log.critical("the model thread has ended, and the service with it")
        on_death()

    async def start(app: FastAPI) -> None:
        """Load the model, warm it up, and put the parts together; what goes wrong is the life's failure."""
        try:
            loaded = await asyncio.wrap_future(in_thread(lambda: load(life.report), "headwater-loader"))
            app.state.parts = await assemble(
                settings, loaded, life=life, admission=admission, metrics=measured, on_death=died
            )
            life.ready()
        except LoadingStopped:
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not isinstance(error, CheckpointError):
                log.critical("the model could not be loaded", exc_info=error)
            life.fail(error)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.loading = asyncio.create_task(start(app))
        yield
        life.drain()
        app.state.loading.cancel()
        parts: Parts | None = app.state.parts
        if parts is not None:
            parts.batcher.close()
            # every request has been answered or given up by now, so there is nothing more to wait for
            await asyncio.to_thread(parts.batcher.join, _LAST_SECONDS)
            parts.wire_threads.shutdown(wait=False)
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

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
    app.state.parts, app.state.life, app.state.admission, app.state.metrics = None, life, admission, measured

    def openapi() -> dict[str, object]:
        parts: Parts = app.state.parts
        return document(app, parts.model, parts.settings, keyed=keys is not None)

    app.openapi = openapi  # type: ignore[method-assign]
    for routes in (forward, model, health, metrics, v2, examples):
        app.include_router(routes.router)

    @app.get("/", include_in_schema=False)
    def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    add_error_handlers(app)
    # the last one added is the outermost
    app.add_middleware(Entrance, keys=keys)
    app.add_middleware(RefuseWhileLoading, life=life)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Manifest", "Server-Timing", "Retry-After", LENGTH_HEADER],
        )
    app.add_middleware(RequestLog, life=life, metrics=measured, tracing=tracing)
    return app
