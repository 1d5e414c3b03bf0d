"""Who runs next: a queue that is fair between shares, and the choice of what runs together.

Each ticket gets a turn when it comes: a point of virtual time, which advances with the work that is taken. A share (an
API key; without keys there is one for all) that has nothing waiting starts at the present turn, and each of its tickets
comes after the one before by the work of that one. So the turns of one share are its order of arrival, and those of
several interleave by work, however many tickets one of them has (start-time fair queueing: Goyal, Vin and Cheng, 1996).
"""

from bisect import insort_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from model.cost import Cost
from service.ticket import Ticket

MOST_PASSED = 4  # batches in which others may pass a ticket that does not fit
FURTHEST = 256  # tickets that do not fit, behind which none is looked for


@dataclass(frozen=True)
class Budget:
    """What one model call may hold: `rows` of the packed matrix, `pairs` of rows (the sum of N squared), bytes kept."""

    rows: int
    pairs: int
    nbytes: int

    def holds(self, cost: Cost) -> bool:
        """Whether a batch of this cost is within the budget."""
        return cost.rows <= self.rows and cost.pairs <= self.pairs and cost.nbytes <= self.nbytes


def take_batch(
    waiting: list[Ticket], budget: Budget, now: float, ends: Mapping[str, float]
) -> tuple[list[Ticket], list[Ticket]]:
    """The next tickets by turn that fit one model call, and those that are set aside because nobody waits for them.

    Both are taken out of `waiting`, which is in the order of turns. One that does not fit may be passed by later ones,
    in MOST_PASSED batches; then nobody passes it, and one that is larger than the budget runs by itself. `ends` has
    the turn at which each share's last ticket ends: where a share has little waiting, the others get as much work into
    its batch as it has itself, so that it is not held up by a batch that they fill.
    """
    batch: list[Ticket] = []
    aside: list[Ticket] = []
    passed: list[Ticket] = []
    overtaken = 0  # of those passed, how many stand before the last that was taken
    held = Cost()
    shares: set[str] = set()
    seen = 0
    for ticket in waiting:
        if ticket.is_wanted(now):
            if any(ticket.turn > ends[share] for share in shares if share != ticket.share):
                break
            if budget.holds(held + ticket.cost):
                batch.append(ticket)
                held += ticket.cost
                shares.add(ticket.share)
                overtaken = len(passed)
            else:
                passed.append(ticket)
        else:
            aside.append(ticket)
        seen += 1
        stuck = passed and (passed[-1].passed >= MOST_PASSED or len(passed) >= FURTHEST)
        if stuck or held.rows >= budget.rows:
            break
    for ticket in passed[:overtaken]:
        ticket.passed += 1
    if passed and not batch:
        batch.append(passed.pop(0))
    waiting[:] = passed + waiting[seen:]
    return batch, aside


class FairQueue:
    """Tickets that wait, in the order of their turns. Not safe for threads by itself."""

    def __init__(self) -> None:
        self._waiting: list[Ticket] = []
        self._now = 0.0  # virtual
        self._ends: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rows(self) -> int:
        """Of all tickets that wait."""
        return sum(ticket.cost.rows for ticket in self._waiting)

    @property
    def calls(self) -> int:
        """How many calls the tickets belong to; those of one call arrived at one time."""
        return len({ticket.arrived for ticket in self._waiting})

    def add(self, tickets: Sequence[Ticket]) -> None:
        """Let tickets of one share wait, in this order."""
        for ticket in tickets:
            ticket.turn = max(self._now, self._ends.get(ticket.share, 0.0))
            self._ends[ticket.share] = ticket.turn + _work(ticket)
            insort_left(self._waiting, ticket, key=attrgetter("turn"))

    def take(self, budget: Budget, now: float) -> tuple[list[Ticket], list[Ticket]]:
        """The next batch and those set aside, as `take_batch` chooses them; `now` is of the monotonic clock."""
        batch, aside = take_batch(self._waiting, budget, now, self._ends)
        for ticket in aside:
            self._ends[ticket.share] -= _work(ticket)  # what is not done does not count
        # newcomers come before whoever waits; after the latest turn that was taken, they would come behind those who
        # were passed
        taken = [ticket.turn for ticket in batch]
        self._now = self._waiting[0].turn if self._waiting else max([self._now, *taken])
        return batch, aside

    def clear(self) -> list[Ticket]:
        """Let go of everybody."""
        left, self._waiting = self._waiting, []
        return left


def _work(ticket: Ticket) -> float:
    return max(1.0, ticket.cost.work)  # a sequence that runs no layer takes its turn all the same
