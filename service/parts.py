"""What the routes work with, put together once by the app."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from model.checkpoint.load import LoadedModel
from service.batcher import Batcher
from service.errors import NotReady
from service.life import Life
from service.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Parts:
    """Settings in force, the loaded model, the batcher, the speed measured at start, and threads for work on bodies."""

    settings: Settings
    model: LoadedModel
    batcher: Batcher
    tokens_per_second: float
    wire_threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="headwater-wire")
    )

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do work on a body in a thread, so that the event loop stays free for others."""
        return await asyncio.get_running_loop().run_in_executor(self.wire_threads, work)


def life_of(request: Request) -> Life:
    """How far the app is that a request came to."""
    life: Life = request.app.state.life
    return life


def parts_of(request: Request) -> Parts:
    """The parts of the app that a request came to. Raises NotReady while there are none."""
    parts: Parts | None = request.app.state.parts
    if parts is None:
        life_of(request).check_started()
        raise NotReady("loading the model")
    return parts


PartsDep = Annotated[Parts, Depends(parts_of)]
LifeDep = Annotated[Life, Depends(life_of)]
