"""One sequence that waits for its run, and then has its results."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from model.cost import Cost
from model.errors import NonFiniteResult
from model.selection import Wanted, result_names
from model.sequence import Sequence
from service.errors import ServiceError, Unprocessable
from service.host_tensor import HostTensor, off_device
from service.mailbox import Mailbox


@dataclass(frozen=True)
class Began:
    """When a ticket arrived and its batch started (seconds of the monotonic clock), and the size of that batch."""

    arrived: float
    started: float
    batch_sequences: int
    batch_tokens: int

    def of(self, arrived: float) -> "Began":
        """The same for a ticket that arrived then."""
        return replace(self, arrived=arrived)


@dataclass(frozen=True)
class Ran:
    """A run that came to its end (seconds of the monotonic clock)."""

    began: Began
    ended: float


class Ticket:
    """A sequence, its deadline, and what becomes of it.

    The model thread fills it as the Sink of its sequence and settles it once; the event loop waits on `done`, and where
    results are delivered on `begun`, and may abandon it at any time, after which nobody computes for it if that can be
    helped. Results are kept in `results`, unless a `deliver` is given: then each goes there at once, in the event loop,
    and is not kept; maps go in parts. It gets the name, the number of bytes before the part, and the part.

    `share` is the API key whose share of the model it uses. `turn` and `passed` belong to the queue. All that happens
    in the loop goes through the `mailbox`, which tickets may share.
    """

    def __init__(
        self,
        sequence: Sequence,
        cost: Cost,
        arrived: float,
        deadline: float,
        deliver: Callable[[str, int, HostTensor], None] | None = None,
        share: str = "",
        mailbox: Mailbox | None = None,
    ) -> None:
        self.sequence = sequence
        self.cost = cost
        self.share = share
        self.turn = 0.0
        self.passed = 0
        self.arrived = arrived
        self.deadline = deadline
        self.abandoned = False
        self.results: dict[str, HostTensor] = {}
        self.error: ServiceError | None = None
        self._deliver = deliver
        self.takes_parts = deliver is not None
        loop = asyncio.get_running_loop()
        self._mailbox = mailbox or Mailbox(loop)
        self.begun: asyncio.Future[Began] = loop.create_future()
        self.done: asyncio.Future[Ran] = loop.create_future()

    def is_wanted(self, now: float) -> bool:
        """Whether somebody still waits for it."""
        return not self.abandoned and now < self.deadline

    def begin(self, began: Began) -> None:
        """Learn that a run starts, and forget what an earlier one of the same batch left."""
        self.forget()
        if self.takes_parts:
            self._in_loop(self._resolve, self.begun, began)

    def forget(self) -> None:
        """Let go of what a run left."""
        self.results, self.error = {}, None

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        """Take results off the device."""
        if self.abandoned or self.error is not None:
            return
        for name, tensor in zip(result_names(wanted), tensors, strict=True):
            if self._deliver is None:
                self.results[name] = off_device(tensor)
            else:
                self._in_loop(self._deliver, name, 0, off_device(tensor))

    def put_part(self, wanted: Wanted, at: int, part: Tensor) -> None:
        """Take a part of a result off the device, in the form in which its bytes follow those before it."""
        if not self.abandoned and self.error is None:
            assert self._deliver is not None
            (name,) = result_names(wanted)
            self._in_loop(self._deliver, name, at * part.element_size(), off_device(part))

    def fail(self, error: NonFiniteResult) -> None:
        """Remember that a result is not finite; the first one counts."""
        if self.error is None:
            self.results = {}
            self.error = Unprocessable(str(error), code="non_finite_result")

    def settle(self, ran: Ran) -> None:
        """Give the waiting call its results, or the error that was found."""
        if self.error is not None:
            self.refuse(self.error)
        else:
            self._in_loop(self._resolve, self.done, ran)

    def refuse(self, error: ServiceError) -> None:
        """Give the waiting call an error."""
        self._in_loop(self._resolve, self.done, error)

    def _in_loop(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._mailbox.post(call, *arguments)
        except RuntimeError:
            # the loop is closed: the service has ended, and nobody waits
            self.abandoned = True

    @staticmethod
    def _resolve(future: "asyncio.Future[object]", outcome: object) -> None:
        if future.done():
            return
        if isinstance(outcome, ServiceError):
            future.set_exception(outcome)
            future.exception()  # it may be that nobody waits for this one
        else:
            future.set_result(outcome)
