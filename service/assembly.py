"""From a loaded model to the parts that serve it: first passes, limits, and where the metrics find their numbers."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version

import torch

from model.checkpoint.load import LoadedModel
from model.replay import record
from model.run import begin
from service.admission import Admission, Bounds
from service.batcher import Batcher
from service.fair_queue import Budget
from service.life import Life
from service.limits import Limits, limits_in_force
from service.loading import settle
from service.memory import available_bytes
from service.metrics import Metrics
from service.parts import Parts
from service.settings import Settings
from service.ticket import Ticket
from service.warm_up import Nobody, largest_that_fits, rows_of_nobody, speed_of

_NOTHING_YET = Budget(1, 1, 1)  # no ticket comes before the limits are known


async def assemble(
    settings: Settings,
    loaded: LoadedModel,
    *,
    life: Life,
    admission: Admission,
    metrics: Metrics,
    on_death: Callable[[], None],
) -> Parts:
    """Start the model thread, warm it up in it, and put the parts together. Raises what the first passes raise."""

    def run_rows(rows: int) -> None:
        life.report(f"a first pass of {rows} rows")
        sequence = rows_of_nobody(loaded.config, rows)
        finish = begin(loaded.stack, [sequence], [Nobody()])
        if finish is not None:
            finish()

    def run_batch(tickets: Sequence[Ticket], is_wanted: Callable[[], bool]) -> Callable[[], None] | None:
        sequences = [ticket.sequence for ticket in tickets]
        with ExitStack() as measuring:
            measuring.enter_context(metrics.batch(sequences))
            finish = begin(loaded.stack, sequences, list(tickets), is_wanted)
            if finish is None:
                return None
            until_finished = measuring.pop_all()

        def finish_and_measure() -> None:
            with until_finished:
                finish()

        return finish_and_measure

    def first_passes() -> tuple[float, Limits]:
        record(loaded.stack)
        speed = speed_of(run_rows, settings.max_batch_tokens)
        limits = limits_in_force(
            settings,
            loaded.config,
            rows_per_second=speed,
            device_bytes=available_bytes(settings.device),
            host_bytes=available_bytes("cpu"),
        )
        if loaded.stack.device.type != "cuda":
            return speed, limits
        # memory of the device's own: what does not fit is found before traffic
        return speed, replace(limits, max_batch_tokens=largest_that_fits(run_rows, limits.max_batch_tokens))

    warming: Future[tuple[float, Limits]] = Future()
    batcher = Batcher(run_batch, _NOTHING_YET, first=lambda: settle(warming, first_passes), on_death=on_death)
    batcher.start()
    try:
        speed, limits = await asyncio.wrap_future(warming)
    except BaseException:
        batcher.close()
        raise
    batcher.budget = limits.budget
    admission.bound(Bounds(limits.max_queue_requests, limits.max_queue_tokens, limits.max_held_bytes), speed)
    _watch(metrics, loaded, batcher, admission)
    return Parts(settings, loaded, batcher, admission, limits)


def _watch(metrics: Metrics, loaded: LoadedModel, batcher: Batcher, admission: Admission) -> None:
    """Tell the metrics what is served, and where the numbers are that change by themselves."""
    metrics.describe(loaded, version("headwater"))
    loop, device = asyncio.get_running_loop(), loaded.stack.device
    metrics.watch("tasks", lambda: len(asyncio.all_tasks(loop)))
    metrics.watch("model_silence_seconds", batcher.beat_age)
    metrics.watch("queue_requests", lambda: batcher.waiting_requests)
    metrics.watch("queue_tokens", lambda: batcher.waiting_tokens)
    metrics.watch("running_tokens", lambda: batcher.running_tokens)
    metrics.watch("admitted_requests", lambda: admission.held.requests)
    metrics.watch("admitted_tokens", lambda: admission.held.rows)
    metrics.watch("admitted_bytes", lambda: admission.held.nbytes)
    metrics.watch("max_admitted_requests", lambda: admission.bounds.requests)
    metrics.watch("max_admitted_tokens", lambda: admission.bounds.rows)
    metrics.watch("max_admitted_bytes", lambda: admission.bounds.nbytes)
    if device.type == "cuda":
        metrics.watch("device_allocated_bytes", lambda: torch.cuda.memory_allocated(device))
        metrics.watch("device_reserved_bytes", lambda: torch.cuda.memory_reserved(device))
