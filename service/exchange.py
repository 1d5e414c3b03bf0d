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
        self._deadline, self._seconds = arrived + seconds, seconds
        now = time.monotonic()  # a body that took its time to arrive has not waited for the model
        mailbox = batcher.mailbox()
        self.tickets = [Ticket(rows, cost, now, self._deadline, deliver, share, mailbox) for rows, cost in sequences]
        self._leaving = asyncio.ensure_future(left)
        self._done = asyncio.gather(*(ticket.done for ticket in self.tickets))
        self._done.add_done_callback(_noted)
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
        return await self.wait_for(self._done)

    def has_left(self) -> bool:
        """Whether the caller is gone."""
        return self._leaving.done()

    async def settled(self) -> list[Ran]:
        """Wait for the runs to end though the caller may have left: for when all results have come already."""
        return await self._done

    async def wait_for(self, awaitable: Awaitable[T]) -> T:
        """Wait for something that comes while the sequences run."""
        future = asyncio.ensure_future(awaitable)
        future.add_done_callback(_noted)
        try:
            while not future.done():
                waiting: list[asyncio.Future[Any]] = [future, self._leaving]
                if not self._done.done():
                    waiting.append(self._done)
                elif (error := self._done.exception()) is not None:
                    raise error  # what is waited for does not come any more
                seconds = self._deadline - time.monotonic()
                done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if future.done():
                    break
                if self._leaving.done():
                    raise CallerLeft("the caller left before its answer was there")
                if not done:
                    raise DeadlinePassed(
                        f"the deadline of {self._seconds:g} seconds passed while the request was waiting or running"
                    )
            return future.result()
        finally:
            if future is not self._done:
                future.cancel()

    def close(self) -> None:
        """Let go of everything."""
        for ticket in self.tickets:
            ticket.abandoned = True
        self._done.cancel()
        self._leaving.cancel()


def _noted(future: "asyncio.Future[Any]") -> None:
    """Look at the outcome of what nobody waits for any more, so that asyncio does not log it as forgotten."""
    if not future.cancelled():
        future.exception()
