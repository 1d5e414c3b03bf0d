"""What the routes work with, put together once by the app."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from model.checkpoint.load import LoadedModel
from service.admission import Admission
from service.batcher import Batcher
from service.errors import DeadlinePassed, NotReady
from service.life import Life
from service.limits import Limits
from service.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Parts:
    """Settings and the limits that follow, the loaded model, the batcher, what is admitted, threads for bodies."""

    settings: Settings
    model: LoadedModel
    batcher: Batcher
    admission: Admission
    limits: Limits
    wire_threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="headwater-wire")
    )

    async def off_loop(self, work: Callable[[], T], arrived: float | None = None) -> T:
        """Do work on a body in a thread, so that the event loop stays free for others.

        For a request that `arrived` then it raises DeadlinePassed when the server's deadline has passed.
        """
        doing = asyncio.get_running_loop().run_in_executor(self.wire_threads, work)
        if arrived is None:
            return await doing
        try:
            async with asyncio.timeout(arrived + self.settings.deadline_seconds - time.monotonic()):
                return await doing
        except TimeoutError:
            raise DeadlinePassed("the deadline passed while the body waited to be read") from None


# What a route depends on is async, and so is each route but for the largest: FastAPI runs a plain function in a thread,
# and on the way there and back a call waits for the interpreter twice.


async def life_of(request: Request) -> Life:
    """How far the app is that a request came to."""
    life: Life = request.app.state.life
    return life


async def parts_of(request: Request) -> Parts:
    """The parts of the app that a request came to. Raises NotReady while there are none."""
    return parts_in(request.app)


def parts_in(app: Any) -> Parts:
    """The parts of an app. Raises NotReady while there are none."""
    parts: Parts | None = app.state.parts
    if parts is None:
        app.state.life.check_started()
        raise NotReady("loading the model")
    return parts


PartsDep = Annotated[Parts, Depends(parts_of)]
LifeDep = Annotated[Life, Depends(life_of)]
