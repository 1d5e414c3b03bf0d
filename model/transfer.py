"""Results of a run on a device that brings them to main memory while it computes something else.

To look at a number on the device, or to copy a result from it the plain way, is to wait for all that was asked of it
before. So whether results are finite is computed there, and results go into page-locked memory on a stream of their
own; the one wait comes at the end, when the device may be busy with the next run. The memory is the allocator's, which
keeps two or three such buffers in turn.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from model.selection import Wanted

ALIGNMENT = 16  # bytes, of each result in the buffer

Take = Callable[[int, Wanted, tuple[Tensor, ...], "list[tuple[float, float]]"], None]
"""Gets a member's result in main memory, and the least and the largest number of each tensor that has any."""


class Transfer:
    """What has been made of a run, on its way. `add` while it runs, `begin` when all is made, `finish` once."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._made: list[tuple[int, Wanted, tuple[Tensor, ...]]] = []
        self._bounds: list[Tensor] = []
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._bounds_there = torch.empty(0)
        self._event: torch.cuda.Event | None = None

    def add(self, member: int, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        """Let a result follow; nobody may write to it any more."""
        self._made.append((member, wanted, tensors))
        self._bounds += [torch.stack(x.aminmax()).float() for x in tensors if has_bounds(x)]

    def begin(self) -> None:
        """Start to bring all that was added."""
        tensors = [x for _, _, of_one in self._made for x in of_one]
        if not tensors:
            return
        device = tensors[0].device
        fast = device.type == "cuda"
        size = sum(_room(x) for x in tensors)
        self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=fast)
        bounds = torch.stack(self._bounds) if self._bounds else torch.empty(0, 2, device=device)
        self._bounds_there = torch.empty(bounds.shape, pin_memory=fast)
        if not fast:
            self._copy(tensors, bounds)
            return
        stream = _stream_of(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._copy(tensors, bounds)
            for x in (*tensors, bounds):
                x.record_stream(stream)  # its memory is not given to another before it has been copied
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(stream)

    def finish(self) -> None:
        """Wait for all of it, and hand it over, in the order in which it was added."""
        if self._event is not None:
            self._event.synchronize()
        bounds = iter(self._bounds_there.tolist())
        at = 0
        for member, wanted, tensors in self._made:
            there, of_each = [], []
            for x in tensors:
                # a copy, for the buffer is wanted for the next run while answers still wait for their readers
                flat = self._buffer[at : at + x.nbytes].clone()
                there.append(flat.view(x.dtype).view(x.shape))
                at += _room(x)
                if has_bounds(x):
                    low, high = next(bounds)
                    of_each.append((low, high))
            self._take(member, wanted, tuple(there), of_each)
        self._made, self._bounds = [], []

    def _copy(self, tensors: list[Tensor], bounds: Tensor) -> None:
        self._bounds_there.copy_(bounds, non_blocking=True)
        at = 0
        for x in tensors:
            self._buffer[at : at + x.nbytes].view(x.dtype).view(x.shape).copy_(x, non_blocking=True)
            at += _room(x)


def has_bounds(x: Tensor) -> bool:
    """Whether a tensor has numbers that may be infinite or none."""
    return x.is_floating_point() and x.numel() > 0


def _room(x: Tensor) -> int:
    return x.nbytes + -x.nbytes % ALIGNMENT


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """The stream for copies from a device; one for all runs, so that they do not overtake each other."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[device]
