"""One call and its tickets: from their submission until the answer is out, or the caller has left."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from model.cost import Cost
from model.sequence import Sequence as Rows
from service.batcher import Batcher
from service.errors import CallerLeft, DeadlinePassed
from service.host_tensor import HostTensor
from service.ticket import Began, Ran, Ticket

T = TypeVar("T")


class Exchange:
    """Waits for the runs of a call's sequences; all of them or none.

    Whatever is waited for ends with DeadlinePassed when `seconds` after `arrived` have passed, with CallerLeft when
    `left` comes to its end, and with the ServiceError of the first sequence that fails. `close` must be called: from
    then on the sequences cost nothing that can be saved.
    """

    def __init__(
        self,
        sequences: Sequence[tuple[Rows, Cost]],
        batcher: Batcher,
        *,
        arrived: float,
        seconds: float,
        left: Awaitable[None],
        deliver: Callable[[str, int, HostTensor], None] | None = None,
        share: str = "",
    ) -> None:
        loop, now = asyncio.get_running_loop(), time.monotonic()
        mailbox = batcher.mailbox()
        # since now: a body that took its time to arrive has not waited for the model
        self.tickets = [Ticket(rows, cost, now, arrived + seconds, deliver, share, mailbox) for rows, cost in sequences]
        self._unfinished = len(self.tickets)
        self._outcome: asyncio.Future[list[Ran]] = loop.create_future()
        self._outcome.add_done_callback(_noted)
        self._leaving = asyncio.ensure_future(left)
        self._leaving.add_done_callback(self._left)
        self._deadline = loop.call_later(arrived + seconds - now, self._too_late, seconds)
        for ticket in self.tickets:
            ticket.done.add_done_callback(self._ended)
        try:
            batcher.submit(self.tickets)
        except BaseException:
            self.close()
            raise

    async def begun(self) -> list[Began]:
        """Wait until the batches of all sequences have started."""
        return await self.wait_for(asyncio.gather(*(ticket.begun for ticket in self.tickets)))

    async def ran(self) -> list[Ran]:
        """Wait until all sequences have run."""
        return await self._outcome

    def has_left(self) -> bool:
        """Whether the caller is gone."""
        return self._leaving.done()

    async def settled(self) -> list[Ran]:
        """Wait for the runs to end though the caller may have left: for when all results have come already."""
        return await asyncio.gather(*(ticket.done for ticket in self.tickets))

    async def wait_for(self, awaitable: Awaitable[T]) -> T:
        """Wait for something that comes while the sequences run."""
        future = asyncio.ensure_future(awaitable)
        future.add_done_callback(_noted)
        try:
            await asyncio.wait((future, self._outcome), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                self._outcome.result()  # what is waited for does not come any more, unless all has run
            return await future
        finally:
            future.cancel()

    def close(self) -> None:
        """Let go of everything."""
        for ticket in self.tickets:
            ticket.abandoned = True
        self._outcome.cancel()
        self._deadline.cancel()
        self._leaving.cancel()

    # --- what ends the waiting

    def _ended(self, done: "asyncio.Future[Ran]") -> None:
        _noted(done)
        self._unfinished -= 1
        if done.cancelled() or self._outcome.done():
            return
        if (error := done.exception()) is not None:
            self._outcome.set_exception(error)
        elif not self._unfinished:
            self._outcome.set_result([ticket.done.result() for ticket in self.tickets])

    def _left(self, leaving: "asyncio.Future[None]") -> None:
        if not (leaving.cancelled() or self._outcome.done()):
            self._outcome.set_exception(CallerLeft("the caller left before its answer was there"))

    def _too_late(self, seconds: float) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(
                DeadlinePassed(f"the deadline of {seconds:g} seconds passed while the request was waiting or running")
            )


def _noted(future: "asyncio.Future[Any]") -> None:
    """Look at the outcome of what nobody waits for any more, so that asyncio does not log it as forgotten."""
    if not future.cancelled():
        future.exception()
