"""Bodies are read in a thread, but for those that take less time than the way there; and so is what they ask for."""

from collections.abc import Callable
from typing import TypeVar

from model.points import is_pattern
from service.parts import Parts
from service.wire.body import Body
from service.wire.call import ForwardCall
from service.wire.coding import Coding

T = TypeVar("T")

QUICK_BODY_BYTES = 1 << 12  # which no reading of a call makes more than some milliseconds of
QUICK_TEXT_BYTES = 1 << 9
QUICK_RESULTS = 16


def is_small(body: Body, coding: Coding | None) -> bool:
    """Whether a body is read so fast that the event loop can do it."""
    return coding is None and len(body) <= QUICK_BODY_BYTES


def is_simple(call: ForwardCall) -> bool:
    """Whether a call out of a small body is checked as fast."""
    outputs = call.outputs or []
    texts = sum(len(one.value) for one in call.inputs if isinstance(one.value, str))
    return (
        len(call.inputs) * max(1, len(outputs)) <= QUICK_RESULTS
        and texts <= QUICK_TEXT_BYTES
        and not any(is_pattern(output.name) for output in outputs)
    )


async def arrived_call(
    read: Callable[[], ForwardCall],
    admit: Callable[[ForwardCall], T],
    parts: Parts,
    *,
    small: bool,
    arrived: float,
) -> T:
    """What `admit` makes of the call that `read` reads, outside the event loop unless it is quick.

    Raises what they raise, and DeadlinePassed where a thread comes too late for a request that `arrived` then.
    """
    if not small:
        return await parts.off_loop(lambda: admit(read()), arrived)
    call = read()
    if is_simple(call):
        return admit(call)
    return await parts.off_loop(lambda: admit(call), arrived)
