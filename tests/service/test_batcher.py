"""The batcher: a pure choice, which is a table, and one thread around it, which settles every ticket."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from model.sequence import Sequence as ModelSequence
from service.batcher import Batcher, Budget, take_batch
from service.errors import DeadlinePassed, Draining, ModelFailed, ServiceError
from service.ticket import Ran, Ticket

SECONDS = 30.0  # after which a test that waits has failed
FAR = 1e9


def ticket(length: int, deadline: float = FAR, *, abandoned: bool = False) -> Ticket:
    made = Ticket(ModelSequence("tokens", np.zeros(length, np.int64), 0, 1, ()), arrived=0.0, deadline=deadline)
    made.abandoned = abandoned
    return made


def running(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in an event loop, and not for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await test()

    asyncio.run(bounded())


NOW = 10.0
# (lengths; negative: its caller left; a float: its deadline passed), budget, taken, aside, left
TABLE: dict[str, tuple[list[float], int, list[int], list[int], list[int]]] = {
    "nothing waits": ([], 10, [], [], []),
    "all fit": ([2, 3, 5], 10, [0, 1, 2], [], []),
    "the budget is filled to the brim, and not beyond": ([7, 3, 1], 10, [0, 1], [], [2]),
    "one over the budget runs by itself": ([11, 2], 10, [0], [], [1]),
    "one over the budget does not join others": ([2, 11, 3], 10, [0], [], [1, 2]),
    "order is kept": ([7, 5, 2], 10, [0], [], [1, 2]),
    "callers who left are set aside and cost nothing": ([-7, 3, -90, 5], 8, [1, 3], [0, 2], []),
    "deadlines that passed are set aside": ([3, 5.5, 2], 10, [0, 2], [1], []),
    "nobody waits any more": ([-3, 5.5], 10, [], [0, 1], []),
    "those behind a full batch are not looked at": ([7, 5, -3], 10, [0], [], [1, 2]),
    "one who left does not count against the next": ([-11, 11], 10, [1], [0], []),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_choice_of_a_batch(name: str) -> None:
    lengths, budget, taken, aside, left = TABLE[name]

    async def test() -> None:
        tickets = [ticket(abs(int(n)), NOW if isinstance(n, float) else NOW + 1, abandoned=n < 0) for n in lengths]
        waiting = deque(tickets)
        batch, set_aside = take_batch(waiting, Budget(budget), NOW)
        assert [tickets.index(one) for one in batch] == taken
        assert [tickets.index(one) for one in set_aside] == aside
        assert [tickets.index(one) for one in waiting] == left

    running(test)


class FakeModel:
    """Remembers every batch (as lengths) and the thread that ran it; can be held, and fails on lengths it was told."""

    def __init__(self, *, held: bool = False, failing: Sequence[int] = ()) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()
        self.failing = set(failing)
        self.entered = threading.Event()
        self.free = threading.Event()
        if not held:
            self.free.set()

    def __call__(self, tickets: Sequence[Ticket]) -> None:
        lengths = [one.sequence.length for one in tickets]
        self.batches.append(lengths)
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.free.wait(SECONDS)
        if self.failing & set(lengths):
            raise RuntimeError("a length that fails")


def with_batcher(model: FakeModel, test: Callable[[Batcher], Awaitable[None]], tokens: int = 1009) -> None:
    """Run a test on a batcher that runs, and end it."""

    async def inside() -> None:
        batcher = Batcher(model, Budget(tokens))
        batcher.start()
        try:
            await test(batcher)
        finally:
            model.free.set()
            batcher.close()
            await asyncio.to_thread(batcher.join, SECONDS)
            assert not batcher.is_alive()

    running(inside)


async def entered(model: FakeModel) -> None:
    assert await asyncio.to_thread(model.entered.wait, SECONDS)


async def outcome(one: Ticket) -> Ran | ServiceError:
    try:
        return await one.done
    except ServiceError as error:
        return error


def test_a_ticket_is_run_and_settled_with_its_batch() -> None:
    model = FakeModel()

    async def test(batcher: Batcher) -> None:
        tickets = [ticket(3), ticket(5)]
        batcher.submit(tickets)
        for ran in await asyncio.gather(*(one.done for one in tickets)):
            assert ran.began.batch_sequences == 2
            assert ran.began.batch_tokens == 8
            assert ran.began.arrived <= ran.began.started <= ran.ended

    with_batcher(model, test)
    assert model.batches == [[3, 5]]


def test_while_the_model_is_busy_tickets_gather_and_then_run_together_in_order() -> None:
    model = FakeModel(held=True)

    async def test(batcher: Batcher) -> None:
        tickets = [ticket(n) for n in (2, 3, 5, 7, 11)]
        batcher.submit(tickets[:1])
        await entered(model)
        for one in tickets[1:]:
            batcher.submit([one])
        model.free.set()
        await asyncio.gather(*(one.done for one in tickets))

    with_batcher(model, test)
    assert model.batches == [[2], [3, 5, 7, 11]]


def test_one_thread_runs_everything() -> None:
    model = FakeModel()

    async def test(batcher: Batcher) -> None:
        for n in range(1, 24):
            one = ticket(n)
            batcher.submit([one])
            await one.done

    with_batcher(model, test)
    assert len(model.batches) == 23
    assert len(model.threads) == 1
    assert threading.get_ident() not in model.threads


def test_a_batch_holds_no_more_than_the_budget_and_one_over_it_runs_alone() -> None:
    model = FakeModel(held=True)

    async def test(batcher: Batcher) -> None:
        first = ticket(1)
        batcher.submit([first])
        await entered(model)
        tickets = [ticket(n) for n in (5, 5, 3, 13, 2, 7, 1)]
        batcher.submit(tickets)
        model.free.set()
        await asyncio.gather(first.done, *(one.done for one in tickets))

    with_batcher(model, test, tokens=10)
    assert model.batches == [[1], [5, 5], [3], [13], [2, 7, 1]]


def test_a_failing_batch_is_run_again_in_halves_and_the_culprit_alone_fails() -> None:
    model = FakeModel(held=True, failing=[97])

    async def test(batcher: Batcher) -> None:
        first = ticket(1)
        batcher.submit([first])
        await entered(model)
        lengths = [*range(2, 12), 97, *range(12, 17)]
        tickets = [ticket(n) for n in lengths]
        batcher.submit(tickets)
        model.free.set()
        results = await asyncio.gather(first.done, *(outcome(one) for one in tickets))
        failed = [n for n, result in zip(lengths, results[1:], strict=True) if isinstance(result, ModelFailed)]
        assert failed == [97]
        assert sum(isinstance(result, Ran) for result in results[1:]) == 15
        # and the loop goes on
        after = ticket(23)
        batcher.submit([after])
        assert isinstance(await outcome(after), Ran)

    with_batcher(model, test)
    assert len(model.batches[1]) == 16
    assert [97] in model.batches
    assert model.batches[-1] == [23]
    assert len(model.batches) <= 2 + 2 * 16


def test_what_a_failed_run_left_on_a_ticket_is_not_in_its_answer() -> None:
    """The first run of a batch of two fails after it filled one ticket; the second run fills it anew."""
    runs: list[int] = []

    def run(tickets: Sequence[Ticket]) -> None:
        runs.append(len(tickets))
        for one in tickets:
            one.results[f"run {len(runs)}"] = None  # type: ignore[assignment]
        if len(tickets) > 1:
            raise RuntimeError

    async def test() -> None:
        batcher = Batcher(run, Budget(1009))
        tickets = [ticket(2), ticket(3)]
        batcher.submit(tickets)
        batcher.start()
        await asyncio.gather(*(one.done for one in tickets))
        assert [list(one.results) for one in tickets] == [["run 2"], ["run 3"]]
        batcher.close()
        await asyncio.to_thread(batcher.join, SECONDS)

    running(test)
    assert runs == [2, 1, 1]


def test_a_caller_who_left_costs_no_model_time() -> None:
    model = FakeModel(held=True)

    async def test(batcher: Batcher) -> None:
        first, left, stays = ticket(1), ticket(3), ticket(5)
        batcher.submit([first])
        await entered(model)
        batcher.submit([left, stays])
        left.abandoned = True
        model.free.set()
        assert isinstance(await outcome(stays), Ran)
        assert isinstance(await outcome(left), ServiceError)

    with_batcher(model, test)
    assert model.batches == [[1], [5]]


def test_a_caller_who_left_while_the_model_ran_hurts_nobody() -> None:
    model = FakeModel(held=True)

    async def test(batcher: Batcher) -> None:
        tickets = [ticket(2), ticket(3)]
        batcher.submit(tickets)
        await entered(model)
        tickets[0].abandoned = True
        tickets[0].done.cancel()
        model.free.set()
        assert isinstance(await outcome(tickets[1]), Ran)
        after = ticket(5)
        batcher.submit([after])
        assert isinstance(await outcome(after), Ran)

    with_batcher(model, test)
    assert model.batches == [[2, 3], [5]]


def test_a_ticket_whose_deadline_passed_is_told_so_and_never_run() -> None:
    model = FakeModel()

    async def test(batcher: Batcher) -> None:
        late, early = ticket(3, deadline=0.0), ticket(5)
        batcher.submit([late, early])
        assert isinstance(await outcome(late), DeadlinePassed)
        assert isinstance(await outcome(early), Ran)

    with_batcher(model, test)
    assert model.batches == [[5]]


def test_closing_settles_every_ticket_and_takes_no_more() -> None:
    model = FakeModel(held=True)

    async def test(batcher: Batcher) -> None:
        running_, waiting = [ticket(2)], [ticket(n) for n in (3, 5, 7)]
        batcher.submit(running_)
        await entered(model)
        batcher.submit(waiting)
        batcher.close()
        assert not batcher.is_open()
        with pytest.raises(Draining):
            batcher.submit([ticket(11)])
        model.free.set()
        # what runs comes to its end; what waits is settled, whichever way
        assert isinstance(await outcome(running_[0]), Ran)
        for one in waiting:
            assert isinstance(await outcome(one), Ran | Draining)

    with_batcher(model, test)
    assert model.batches[0] == [2]


def test_closing_before_anything_came_ends_the_thread() -> None:
    model = FakeModel()

    async def test(batcher: Batcher) -> None:
        assert batcher.is_alive()
        assert batcher.is_open()

    with_batcher(model, test)
    assert model.batches == []


def test_a_loop_that_dies_settles_what_it_holds_and_is_no_longer_alive() -> None:
    class Ended(BaseException):
        pass

    def run(_: Sequence[Ticket]) -> None:
        raise Ended

    async def test() -> None:
        batcher = Batcher(run, Budget(3))
        tickets = [ticket(2), ticket(3)]
        batcher.submit(tickets)
        batcher.start()
        for one in tickets:
            assert isinstance(await outcome(one), ServiceError)
        await asyncio.to_thread(batcher.join, SECONDS)
        assert not batcher.is_alive()
        assert not batcher.is_open()

    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        running(test)
    finally:
        threading.excepthook = hook


def test_tickets_of_a_loop_that_is_closed_do_not_stop_the_model_thread() -> None:
    model = FakeModel(held=True)
    batcher = Batcher(model, Budget(1009))
    batcher.start()

    async def leave() -> None:
        batcher.submit([ticket(2)])
        await entered(model)

    running(leave)

    async def test() -> None:
        model.free.set()
        after = ticket(3)
        batcher.submit([after])
        assert isinstance(await outcome(after), Ran)
        batcher.close()
        await asyncio.to_thread(batcher.join, SECONDS)

    running(test)
    assert model.batches == [[2], [3]]
