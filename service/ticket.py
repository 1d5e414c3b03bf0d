"""One sequence that waits for its run, and then has its results."""

import asyncio
from dataclasses import dataclass

from torch import Tensor

from model.errors import NonFiniteResult
from model.selection import Wanted, result_names
from model.sequence import Sequence
from service.errors import ServiceError, Unprocessable
from service.host_tensor import HostTensor, off_device


@dataclass(frozen=True)
class Ran:
    """When a ticket waited and ran (seconds of the monotonic clock), and the size of its batch."""

    arrived: float
    started: float
    ended: float
    batch_sequences: int
    batch_tokens: int


class Ticket:
    """A sequence, its deadline, and what becomes of it.

    The model thread fills it as the Sink of its sequence and settles it once; the event loop waits on `done` and may
    abandon it at any time, after which nobody computes for it if that can be helped.
    """

    def __init__(self, sequence: Sequence, arrived: float, deadline: float) -> None:
        self.sequence = sequence
        self.arrived = arrived
        self.deadline = deadline
        self.abandoned = False
        self.results: dict[str, HostTensor] = {}
        self.error: ServiceError | None = None
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Ran] = self._loop.create_future()

    def is_wanted(self, now: float) -> bool:
        """Whether somebody still waits for it."""
        return not self.abandoned and now < self.deadline

    def begin(self) -> None:
        """Forget what an earlier run of the same batch left."""
        self.results, self.error = {}, None

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        """Take results off the device."""
        if not self.abandoned and self.error is None:
            for name, tensor in zip(result_names(wanted), tensors, strict=True):
                self.results[name] = off_device(tensor)

    def fail(self, error: NonFiniteResult) -> None:
        """Remember that a result is not finite; the first one counts."""
        if self.error is None:
            self.results = {}
            self.error = Unprocessable(str(error), code="non_finite_result")

    def settle(self, ran: Ran) -> None:
        """Give the waiting call its results, or the error that was found."""
        self._in_loop(ran if self.error is None else self.error)

    def refuse(self, error: ServiceError) -> None:
        """Give the waiting call an error."""
        self._in_loop(error)

    def _in_loop(self, outcome: Ran | ServiceError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._resolve, outcome)
        except RuntimeError:
            # the loop is closed: the service has ended, and nobody waits
            self.abandoned = True

    def _resolve(self, outcome: Ran | ServiceError) -> None:
        if self.done.done():
            return
        if isinstance(outcome, ServiceError):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)
