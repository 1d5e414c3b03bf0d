"""Tickets to batches to results: a fair queue, and one thread that owns the model.

There is no timer: while the model is busy tickets gather, and when it is free the next batch takes what there is.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from model.errors import NobodyWaits
from model.out_of_memory import give_back, is_out_of_memory
from service.errors import DeadlinePassed, Draining, ModelFailed
from service.fair_queue import Budget, FairQueue
from service.garbage import IdleCollector
from service.heap import Heap
from service.mailbox import Mailbox
from service.ticket import Began, Ran, Ticket

log = logging.getLogger("headwater.batcher")

IDLE_BEAT_SECONDS = 1.0

RunBatch = Callable[[Sequence[Ticket], Callable[[], bool]], Callable[[], None] | None]
"""Run the tickets' sequences together and put each one's results on its ticket; may raise.

The second argument is to be asked between layers whether to go on; where it says no, NobodyWaits is raised. Where a
device goes on by itself, what is returned waits for it and puts the results; it may raise too. None: all is done.
"""

Failure = Literal["left", "out of memory", "failed"]


@dataclass
class _Begun:
    """A batch that runs, on a device that does so by itself where there is a `finish`."""

    batch: list[Ticket]
    began: Began
    finish: Callable[[], None] | None = None


class Batcher:
    """The queue and the model thread. `submit` is for the event loop, everything else happens in the thread.

    Where the device runs by itself, the next batch is begun before the results of the last one are waited for: they are
    copied out while it computes. If nobody waits, they are waited for at once.

    `first` is called in the thread before any batch, `on_death` where it ends without having been closed.
    """

    def __init__(
        self,
        run_batch: RunBatch,
        budget: Budget,
        *,
        first: Callable[[], None] | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self.budget = budget
        self._run_batch, self._first, self._on_death = run_batch, first, on_death
        self._queue = FairQueue()
        self._begun: _Begun | None = None
        self._running_rows = 0
        self._mailbox: Mailbox | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._beat = time.monotonic()
        self._heap, self._collector = Heap(), IdleCollector()
        self._thread = threading.Thread(target=self._work, name="headwater-model", daemon=True)

    def start(self) -> None:
        """Start the model thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the model thread runs."""
        return self._thread.is_alive()

    def is_open(self) -> bool:
        """Whether tickets are taken."""
        return self._thread.is_alive() and not self._closed

    def beat_age(self) -> float:
        """Seconds since the thread last showed that it lives: it does so while it waits, and between layers."""
        return time.monotonic() - self._beat

    @property
    def waiting_requests(self) -> int:
        """Calls with sequences that wait."""
        with self._changed:
            return self._queue.calls

    @property
    def waiting_tokens(self) -> int:
        """Rows of the sequences that wait."""
        with self._changed:
            return self._queue.rows

    @property
    def running_tokens(self) -> int:
        """Rows of the batches that run."""
        begun = self._begun
        return self._running_rows + (0 if begun is None else begun.began.batch_tokens)

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Let tickets wait for their runs, in this order. Raises Draining once the batcher is closed."""
        with self._changed:
            if self._closed:
                raise _going_down()
            self._queue.add(tickets)
            self._changed.notify()

    def mailbox(self) -> Mailbox:
        """Where the tickets of the running event loop get what happens to them."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def close(self) -> None:
        """Take no more; what waits is refused, what runs comes to its end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Wait for the model thread to end after `close`."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        batch: list[Ticket] = []
        died = True
        try:
            if self._first is not None:
                self._first()
            while (batch := self._take()) or self._begun or not self._closed:
                if batch:
                    self._run(batch, time.monotonic())
                    batch = []
                    self._heap.used()
                    self._heap.give_back()
                elif self._begun:
                    self._finish_begun()
                else:
                    self._collector.collect()
                    self._heap.give_back()
            died = False
        except BaseException:
            log.critical("the model thread died", exc_info=True)
        finally:
            with self._changed:
                self._closed = True
                left = [*batch, *(self._begun.batch if self._begun else []), *self._queue.clear()]
            for ticket in left:
                ticket.refuse(ModelFailed("the model thread died") if died else _going_down())
            if died and self._on_death is not None:
                self._on_death()

    def _take(self) -> list[Ticket]:
        """The next batch, as soon as there is one; empty where nobody came for a moment, or at the end.

        Empty at once where nobody waits but those whose batch has begun.
        """
        with self._changed:
            if not (self._queue or self._closed or self._begun):
                self._changed.wait(IDLE_BEAT_SECONDS)
            self._beat = time.monotonic()
            if self._closed or not self._queue:
                return []
            batch, aside = self._queue.take(self.budget, time.monotonic())
        for ticket in aside:
            ticket.refuse(DeadlinePassed("the deadline passed while the request was waiting"))
        return batch

    def _run(self, batch: list[Ticket], started: float) -> None:
        """Run a batch and settle its tickets; a batch that fails is run again in halves, down to the culprit."""
        batch = _still_wanted(batch)
        if not batch:
            return
        began = Began(0.0, started, len(batch), sum(ticket.cost.rows for ticket in batch))
        for ticket in batch:
            ticket.begin(began.of(ticket.arrived))
        run = _Begun(batch, began)
        failure = self._attempt(batch, lambda: self._begin(run))
        self._finish_begun()
        if failure is None and run.finish is not None:
            self._begun = run
        else:
            self._conclude(run, failure)

    def _begin(self, run: _Begun) -> None:
        def is_wanted() -> bool:
            self._beat = now = time.monotonic()
            return any(ticket.is_wanted(now) for ticket in run.batch)

        run.finish = self._run_batch(run.batch, is_wanted)

    def _finish_begun(self) -> None:
        """Wait for the device, if a batch runs there, and for what is run again because that one failed."""
        while (run := self._begun) is not None:
            assert run.finish is not None
            self._begun = None
            self._conclude(run, self._attempt(run.batch, run.finish))

    def _conclude(self, run: _Begun, failure: Failure | None) -> None:
        """Settle the tickets of a batch that ran, or run it again in halves."""
        batch, started = run.batch, run.began.started
        run.finish = None
        if failure is None:
            ended = time.monotonic()
            for ticket in batch:
                ticket.settle(Ran(run.began.of(ticket.arrived), ended))
            return
        # Nothing refers to the failed run any more, neither its results nor its frames: so its memory is free.
        for ticket in batch:
            ticket.forget()
        if failure == "out of memory":
            give_back()
        if failure == "left":
            _still_wanted(batch)
        elif len(batch) > 1:
            middle = len(batch) // 2
            self._run(batch[:middle], started)
            self._run(batch[middle:], started)
        elif failure == "out of memory":
            batch[0].refuse(ModelFailed("there is not enough memory for this request alone", code="out_of_memory"))
        else:
            batch[0].refuse(ModelFailed("the model failed on this request"))

    def _attempt(self, batch: list[Ticket], work: Callable[[], None]) -> Failure | None:
        """Begin or finish a batch; what went wrong, or None."""
        self._running_rows = sum(ticket.cost.rows for ticket in batch)
        try:
            work()
        except NobodyWaits:
            return "left"
        except Exception as error:
            if len(batch) > 1:
                log.warning("a batch of %d failed and is run again in halves", len(batch), exc_info=error)
            else:
                log.error("a sequence failed in the model", exc_info=error)
            return "out of memory" if is_out_of_memory(error) else "failed"
        finally:
            self._running_rows = 0
            self._beat = time.monotonic()
        return None


def _going_down() -> Draining:
    return Draining("the service is shutting down", retry_after=5)


def _still_wanted(batch: list[Ticket]) -> list[Ticket]:
    """Those that somebody waits for; the others are told that it is too late."""
    now = time.monotonic()
    wanted: list[Ticket] = []
    for ticket in batch:
        if ticket.is_wanted(now):
            wanted.append(ticket)
        else:
            ticket.refuse(DeadlinePassed("the deadline passed while the request was waiting or running"))
    return wanted
