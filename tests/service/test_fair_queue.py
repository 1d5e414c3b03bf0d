"""Who runs next: the choice of a batch is a table, and what lasts over many batches is checked by playing them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.cost import Cost
from model.sequence import Sequence
from service.fair_queue import MOST_PASSED, Budget, FairQueue, take_batch
from service.ticket import Ticket

NOW = 10.0
PLENTY = 10**12


def ticket(
    rows: int, *, share: str = "", gone: bool = False, late: bool = False, pairs: int = 0, nbytes: int = 0
) -> Ticket:
    sequence = Sequence("tokens", np.zeros(rows, np.int64), 0, 1, ())
    cost = Cost(rows, pairs, nbytes, float(rows))
    made = Ticket(sequence, cost, arrived=0.0, deadline=NOW if late else NOW + 1, share=share)
    made.abandoned = gone
    return made


def in_loop(test: Callable[[], None]) -> None:
    """Tickets belong to an event loop."""

    async def inside() -> None:
        test()

    asyncio.run(inside())


@dataclass
class Case:
    """Rows of those who wait (negative: left; a float: too late), how often they were passed; what comes of it."""

    rows: list[float]
    taken: list[int]
    aside: list[int]
    left: list[int]
    passed: dict[int, int] = field(default_factory=dict)
    budget: int = 10


TABLE = {
    "nothing waits": Case([], [], [], []),
    "all fit": Case([2, 3, 5], [0, 1, 2], [], []),
    "the budget is filled to the brim": Case([7, 3, 1], [0, 1], [], [2]),
    "a short one passes a long one that does not fit": Case([7, 5, 2], [0, 2], [], [1]),
    "and several do": Case([4, 9, 3, 8, 2, 1], [0, 2, 4, 5], [], [1, 3]),
    "nobody passes one that was passed often enough": Case([7, 5, 2], [0], [], [1, 2], {1: MOST_PASSED}),
    "others may still be taken before it": Case([2, 3, 9, 1], [0, 1], [], [2, 3], {2: MOST_PASSED}),
    "one over the budget runs by itself": Case([11], [0], [], []),
    "short ones pass one over the budget": Case([11, 2, 3], [1, 2], [], [0]),
    "until it was passed often enough": Case([11, 2, 3], [0], [], [1, 2], {0: MOST_PASSED}),
    "one over the budget does not join others": Case([2, 11, 3], [0, 2], [], [1]),
    "two over the budget run one by one": Case([11, 12], [0], [], [1]),
    "callers who left are set aside": Case([-7, 3, -90, 5], [1, 3], [0, 2], [], {}, 8),
    "deadlines that passed are set aside": Case([3, 5.5, 2], [0, 2], [1], []),
    "nobody waits any more": Case([-3, 5.5], [], [0, 1], []),
    "one who left does not count against the next": Case([-11, 11], [1], [0], []),
    "those behind a full batch are not looked at": Case([7, 3, -3], [0, 1], [], [2]),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_choice_of_a_batch(name: str) -> None:
    case = TABLE[name]

    def test() -> None:
        tickets = [ticket(abs(int(n)), gone=n < 0, late=isinstance(n, float)) for n in case.rows]
        for i, times in case.passed.items():
            tickets[i].passed = times
        waiting = list(tickets)
        batch, aside = take_batch(waiting, Budget(case.budget, PLENTY, PLENTY), NOW, {"": 0.0})
        assert [tickets.index(one) for one in batch] == case.taken
        assert [tickets.index(one) for one in aside] == case.aside
        assert [tickets.index(one) for one in waiting] == case.left

    in_loop(test)


@pytest.mark.parametrize("what", ["rows", "pairs", "nbytes"])
def test_each_budget_holds_by_itself(what: str) -> None:
    def test() -> None:
        tickets = [ticket(1, **({what: 6} if what != "rows" else {})) for _ in range(3)]
        if what == "rows":
            tickets = [ticket(6) for _ in range(3)]
        limits = {"rows": PLENTY, "pairs": PLENTY, "nbytes": PLENTY} | {what: 13}
        batch, _ = take_batch(list(tickets), Budget(**limits), NOW, {"": 0.0})
        assert len(batch) == 2

    in_loop(test)


def played(queue: FairQueue, budget: Budget, come: Callable[[int], list[Ticket]], batches: int) -> list[list[Ticket]]:
    """The batches that are taken while new tickets come before each."""
    taken: list[list[Ticket]] = []
    for i in range(batches):
        if new := come(i):
            queue.add(new)
        batch, _ = queue.take(budget, 0.0)
        taken.append(batch)
    return taken


def test_nothing_starves_however_many_short_ones_come() -> None:
    """A long one that never fits beside others, or not at all, runs after MOST_PASSED batches of later ones."""

    def test() -> None:
        for rows in (9, 10, 11, 1000):
            long = ticket(rows)
            queue = FairQueue()
            queue.add([ticket(2), long])
            taken = played(queue, Budget(10, PLENTY, PLENTY), lambda _: [ticket(2) for _ in range(5)], 20)
            at = next(i for i, batch in enumerate(taken) if long in batch)
            assert 1 <= at <= MOST_PASSED

    in_loop(test)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from("abc")), min_size=1, max_size=60), st.integers(1, 20))
def test_every_ticket_is_taken_once_and_a_share_is_served_in_order_but_for_those_that_pass(
    tickets: list[tuple[int, str]], rows: int
) -> None:
    def test() -> None:
        queue, made = FairQueue(), [ticket(n, share=share) for n, share in tickets]
        for one in made:
            queue.add([one])
        seen: list[Ticket] = []
        for _ in range(len(made)):
            batch, aside = queue.take(Budget(rows, PLENTY, PLENTY), 0.0)
            assert not aside
            assert sum(one.cost.rows for one in batch) <= rows or len(batch) == 1
            seen += batch
        assert sorted(map(id, seen)) == sorted(map(id, made))
        assert len(queue) == 0
        assert all(one.passed <= MOST_PASSED for one in made)

    in_loop(test)


def test_a_share_that_floods_does_not_make_another_wait_for_its_flood() -> None:
    """One has a thousand waiting; whoever else comes is in the very next batch, which then is no full one."""

    def test() -> None:
        queue = FairQueue()
        queue.add([ticket(5, share="flood") for _ in range(1000)])
        budget = Budget(500, PLENTY, PLENTY)
        for _ in range(5):
            batch, _ = queue.take(budget, 0.0)
            assert len(batch) == 100
            other = ticket(7, share="other")
            queue.add([other])
            batch, _ = queue.take(budget, 0.0)
            assert other in batch
            assert sum(one.cost.rows for one in batch if one is not other) <= 2 * 7 + 5

    in_loop(test)


def test_whoever_comes_is_next_also_when_a_flood_has_some_who_were_passed() -> None:
    def test() -> None:
        queue = FairQueue()
        queue.add([ticket(n, share="flood") for n in (7, 80, 11, 60, 5, 70, 13) * 20])
        for _ in range(12):
            queue.take(Budget(100, PLENTY, PLENTY), 0.0)
            other = ticket(3, share="other")
            queue.add([other])
            batch, _ = queue.take(Budget(100, PLENTY, PLENTY), 0.0)
            assert batch[0] is other

    in_loop(test)


def test_two_shares_that_flood_get_as_much_work_each_in_full_batches() -> None:
    def test() -> None:
        queue = FairQueue()
        queue.add([ticket(5, share="small") for _ in range(1000)])
        queue.add([ticket(25, share="large") for _ in range(200)])
        work = {"small": 0, "large": 0}
        for _ in range(20):
            batch, _ = queue.take(Budget(100, PLENTY, PLENTY), 0.0)
            assert sum(one.cost.rows for one in batch) >= 75
            for one in batch:
                work[one.share] += one.cost.rows
        assert 0.9 < work["small"] / work["large"] < 1.1

    in_loop(test)


def test_a_share_whose_callers_left_has_not_used_up_its_turn() -> None:
    def test() -> None:
        queue = FairQueue()
        queue.add([ticket(50, share="left", gone=True) for _ in range(100)])
        queue.take(Budget(10, PLENTY, PLENTY), 0.0)
        back, other = ticket(5, share="left"), [ticket(5, share="other") for _ in range(50)]
        queue.add(other)
        queue.add([back])
        batch, _ = queue.take(Budget(10, PLENTY, PLENTY), 0.0)
        assert back in batch

    in_loop(test)


def test_a_share_that_was_idle_saves_nothing_up() -> None:
    def test() -> None:
        queue = FairQueue()
        queue.add([ticket(5, share="busy") for _ in range(400)])
        for _ in range(10):
            queue.take(Budget(100, PLENTY, PLENTY), 0.0)
        queue.add([ticket(5, share="idle") for _ in range(400)])
        batch, _ = queue.take(Budget(100, PLENTY, PLENTY), 0.0)
        assert {one.share for one in batch} == {"busy", "idle"}
        assert 40 <= sum(one.cost.rows for one in batch if one.share == "busy") <= 60

    in_loop(test)


def test_a_choice_among_very_many_is_quick() -> None:
    """Also where none of them fits: the look-ahead is bounded."""

    def test() -> None:
        queue = FairQueue()
        queue.add([ticket(2), *(ticket(9) for _ in range(20_000))])
        looked = 0

        class Counted(Ticket):
            def is_wanted(self, now: float) -> bool:
                nonlocal looked
                looked += 1
                return True

        for one in queue._waiting:
            one.__class__ = Counted
        queue.take(Budget(10, PLENTY, PLENTY), 0.0)
        assert looked < 300

    in_loop(test)
