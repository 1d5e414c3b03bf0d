"""The batcher: one thread around a queue, which settles every ticket, whatever happens."""

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import service.batcher
from model.cost import Cost
from model.errors import NobodyWaits
from model.sequence import Sequence as ModelSequence
from service.batcher import Batcher
from service.errors import DeadlinePassed, Draining, ModelFailed, ServiceError
from service.fair_queue import Budget
from service.host_tensor import HostTensor
from service.ticket import Ran, Ticket

SECONDS = 30.0  # after which a test that waits has failed
FAR = 1e9


def ticket(length: int, deadline: float = FAR, *, abandoned: bool = False) -> Ticket:
    sequence = ModelSequence("tokens", np.zeros(length, np.int64), 0, 1, ())
    made = Ticket(sequence, Cost(rows=length, work=float(length)), arrived=0.0, deadline=deadline)
    made.abandoned = abandoned
    return made


def rows(n: int) -> Budget:
    """A budget of rows alone."""
    return Budget(n, 10**18, 10**18)


def running(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in an event loop, and not for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await test()

    asyncio.run(bounded())


class FakeModel:
    """Remembers every batch (as lengths) and the thread that ran it; can be held, and fails on lengths it was told."""

    def __init__(self, *, held: bool = False, failing: Sequence[int] = (), error: Exception | None = None) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()
        self.failing = set(failing)
        self.error = error or RuntimeError("a length that fails")
        self.entered = threading.Event()
        self.free = threading.Event()
        if not held:
            self.free.set()

    def __call__(self, tickets: Sequence[Ticket], is_wanted: Callable[[], bool]) -> None:
        lengths = [one.sequence.length for one in tickets]
        self.batches.append(lengths)
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.free.wait(SECONDS)
        if not is_wanted():
            raise NobodyWaits
        if self.failing & set(lengths):
            raise self.error


def with_batcher(model: FakeModel, test: Callable[[Batcher], Awaitable[None]], tokens: int = 1009) -> None:
    """Run a test on a batcher that runs, and end it."""

    async def inside() -> None:
        batcher = Batcher(model, rows(tokens))
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
    assert model.batches == [[1], [5, 5], [3, 2, 1], [7], [13]]


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

    def run(tickets: Sequence[Ticket], _: Callable[[], bool]) -> None:
        runs.append(len(tickets))
        for one in tickets:
            one.results[f"run {len(runs)}"] = None  # type: ignore[assignment]
        if len(tickets) > 1:
            raise RuntimeError

    async def test() -> None:
        batcher = Batcher(run, rows(1009))
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


def test_a_loop_that_dies_settles_what_it_holds_says_so_and_is_no_longer_alive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Ended(BaseException):
        pass

    deaths: list[str] = []

    def run(*_: object) -> None:
        raise Ended

    async def test() -> None:
        batcher = Batcher(run, rows(3), on_death=lambda: deaths.append(threading.current_thread().name))
        tickets = [ticket(2), ticket(3)]
        batcher.submit(tickets)
        batcher.start()
        for one in tickets:
            assert isinstance(await outcome(one), ServiceError)
        await asyncio.to_thread(batcher.join, SECONDS)
        assert not batcher.is_alive()
        assert not batcher.is_open()
        with pytest.raises(Draining):
            batcher.submit([ticket(5)])

    running(test)
    assert deaths == ["headwater-model"]
    assert "the model thread died" in caplog.text


def test_tickets_of_a_loop_that_is_closed_do_not_stop_the_model_thread() -> None:
    model = FakeModel(held=True)
    batcher = Batcher(model, rows(1009))
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


OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:130] DefaultCPUAllocator: not enough memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_a_batch_that_does_not_fit_is_run_in_halves_after_everything_of_it_was_freed(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the second run neither results nor a traceback's frames hold what the first one made."""
    made: list[weakref.ref[np.ndarray[Any, Any]]] = []
    alive_at_rerun: list[int] = []
    given_back: list[int] = []
    monkeypatch.setattr(service.batcher, "give_back", lambda: given_back.append(1))
    monkeypatch.setattr(service.batcher.log, "disabled", True)  # pytest keeps what is logged, and so the frames

    def run(tickets: Sequence[Ticket], _: Callable[[], bool]) -> None:
        if made:
            alive_at_rerun.append(sum(one() is not None for one in made))
        if len(tickets) > 1:
            activations = np.zeros(7)
            made.append(weakref.ref(activations))
            tickets[0].results["x"] = HostTensor("float64", activations)
            raise type(error)(*error.args)  # another, for this one is kept by the test

    async def test() -> None:
        batcher = Batcher(run, rows(1009))
        tickets = [ticket(2), ticket(3)]
        batcher.submit(tickets)
        batcher.start()
        for one in tickets:
            assert isinstance(await outcome(one), Ran)
        batcher.close()
        await asyncio.to_thread(batcher.join, SECONDS)

    running(test)
    assert alive_at_rerun == [0, 0]
    assert given_back == [1]


def test_one_sequence_for_which_there_is_no_memory_fails_alone_and_is_told_why() -> None:
    model = FakeModel(held=True, failing=[97], error=OUT_OF_MEMORY[2])  # type: ignore[arg-type]

    async def test(batcher: Batcher) -> None:
        first = ticket(1)
        batcher.submit([first])
        await entered(model)
        tickets = [ticket(n) for n in (2, 97, 3)]
        batcher.submit(tickets)
        model.free.set()
        outcomes = [await outcome(one) for one in tickets]
        assert [type(one) for one in outcomes] == [Ran, ModelFailed, Ran]
        assert outcomes[1].code == "out_of_memory"  # type: ignore[union-attr]

    with_batcher(model, test)


def test_a_batch_that_nobody_waits_for_any_more_is_given_up_between_layers() -> None:
    model = FakeModel(held=True)
    went_on: list[bool] = []

    async def test(batcher: Batcher) -> None:
        tickets = [ticket(2), ticket(3)]
        batcher.submit(tickets)
        await entered(model)
        for one in tickets:
            one.abandoned = True
        model.free.set()
        assert isinstance(await outcome(tickets[0]), DeadlinePassed)
        after = ticket(5)
        batcher.submit([after])
        went_on.append(isinstance(await outcome(after), Ran))

    with_batcher(model, test)
    assert went_on == [True]
    assert model.batches == [[2, 3], [5]]  # given up, and not run again in halves


def test_those_who_left_are_not_run_again_with_a_failed_batch() -> None:
    model = FakeModel(held=True, failing=[97])

    async def test(batcher: Batcher) -> None:
        tickets = [ticket(2), ticket(97), ticket(3)]
        batcher.submit(tickets)
        await entered(model)
        tickets[0].abandoned = True
        model.free.set()
        assert isinstance(await outcome(tickets[1]), ModelFailed)
        assert isinstance(await outcome(tickets[2]), Ran)

    with_batcher(model, test)
    assert model.batches == [[2, 97, 3], [97, 3], [97], [3]]


def test_the_thread_beats_while_it_waits_and_between_layers() -> None:
    model = FakeModel(held=True)

    async def test(batcher: Batcher) -> None:
        one = ticket(2)
        batcher.submit([one])
        await entered(model)
        held = batcher.beat_age()
        while batcher.beat_age() < held + 0.05:  # it is inside a layer, and shows nothing
            await asyncio.sleep(0)
        before = batcher.beat_age()
        model.free.set()
        await one.done
        assert batcher.beat_age() < before  # is_wanted was asked
        aged = batcher.beat_age()
        while (age := batcher.beat_age()) >= aged:  # idle: a beat comes by itself
            aged = age
            await asyncio.sleep(0)

    with_batcher(model, test)


def test_what_waits_and_what_runs_can_be_read() -> None:
    model = FakeModel(held=True)

    async def test(batcher: Batcher) -> None:
        first, *others = tickets = [ticket(n) for n in (2, 3, 5)]
        others[-1].arrived = 1.0  # of another call
        batcher.submit([first])
        await entered(model)
        batcher.submit(others)
        assert (batcher.running_tokens, batcher.waiting_requests, batcher.waiting_tokens) == (2, 2, 8)
        model.free.set()
        await asyncio.gather(*(one.done for one in tickets))
        assert (batcher.running_tokens, batcher.waiting_requests, batcher.waiting_tokens) == (0, 0, 0)

    with_batcher(model, test)


class FakeDevice(FakeModel):
    """Begins batches, each of which is finished when it is waited for; remembers what happened in which order."""

    def __init__(self, *, failing_later: Sequence[int] = (), **options: Any) -> None:
        super().__init__(**options)
        self.failing_later = set(failing_later)
        self.events: list[tuple[str, list[int]]] = []

    def __call__(self, tickets: Sequence[Ticket], is_wanted: Callable[[], bool]) -> Callable[[], None]:
        lengths = [one.sequence.length for one in tickets]
        self.events.append(("begin", lengths))
        super().__call__(tickets, is_wanted)

        def finish() -> None:
            self.events.append(("finish", lengths))
            if self.failing_later & set(lengths):
                raise self.error

        return finish


def test_a_device_that_runs_by_itself_begins_the_next_batch_before_the_last_is_waited_for() -> None:
    device = FakeDevice(held=True)

    async def test(batcher: Batcher) -> None:
        tickets = [ticket(n) for n in (2, 3, 5)]
        batcher.submit(tickets)
        await entered(device)
        device.free.set()
        await asyncio.gather(*(one.done for one in tickets))
        assert batcher.running_tokens == 0

    with_batcher(device, test, tokens=3)
    assert device.events == [
        ("begin", [2]), ("begin", [3]), ("finish", [2]), ("begin", [5]), ("finish", [3]), ("finish", [5]),
    ]  # fmt: skip


def test_a_batch_that_fails_on_the_device_is_run_again_in_halves_after_what_runs_is_finished() -> None:
    device = FakeDevice(held=True, failing_later=[7])

    async def test(batcher: Batcher) -> None:
        first = ticket(1)
        batcher.submit([first])
        await entered(device)
        lengths = (2, 7, 4, 11)
        tickets = [ticket(n) for n in lengths]
        batcher.submit(tickets)
        device.free.set()
        results = await asyncio.gather(*(outcome(one) for one in tickets))
        assert [isinstance(result, ModelFailed) for result in results] == [False, True, False, False]
        assert isinstance(await outcome(first), Ran)

    with_batcher(device, test, tokens=13)
    finished = [lengths for what, lengths in device.events if what == "finish"]
    assert finished.count([7]) == 1
    begun = [lengths for what, lengths in device.events if what == "begin"]
    assert sorted(begun) == sorted(finished), "each run that began was waited for"


def test_a_batch_on_the_device_is_finished_when_the_batcher_is_closed() -> None:
    device = FakeDevice(held=True)

    async def test(batcher: Batcher) -> None:
        one = ticket(2)
        batcher.submit([one])
        await entered(device)
        batcher.close()
        device.free.set()
        assert isinstance(await outcome(one), Ran)

    with_batcher(device, test)
