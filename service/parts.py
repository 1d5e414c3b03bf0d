"""What the routes work with, put together once by the app."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from model.checkpoint.load import LoadedModel
from service.batcher import Batcher
from service.metrics import Metrics
from service.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Parts:
    """Settings, the loaded model, the batcher, what is measured, and threads for work on bodies."""

    settings: Settings
    model: LoadedModel
    batcher: Batcher
    metrics: Metrics
    wire_threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="headwater-wire")
    )

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do work on a body in a thread, so that the event loop stays free for others."""
        return await asyncio.get_running_loop().run_in_executor(self.wire_threads, work)


def parts_of(request: Request) -> Parts:
    """The parts of the app that a request came to."""
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(parts_of)]
