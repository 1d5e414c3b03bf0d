"""Small batches on a GPU: every layer as a recording of its kernels, made once for each of a few numbers of rows.

A GPU needs less time for a layer of few rows than Python needs to start its kernels one by one. So they are recorded as
a CUDA graph, which starts by one call. A recording has its memory once and for all: what enters is copied into it, and
what comes out is overwritten by the next batch. Its number of rows is fixed too, so that batches are filled up to it,
also where a layer is then run kernel by kernel for something within it: what else is asked for changes no product.

Names end in their dimensions: R rows of a recording, D model width, S sequences.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from model.keep import Keep
from model.packing import Packing
from model.stack import Stack

log = logging.getLogger("headwater.replay")

SIZES = (16, 32, 64, 128, 256, 512, 1024)  # rows that there are recordings of
ROWS_A_SEQUENCE = 16  # at most so many sequences as if each had so many rows: places cost time even where empty
LEAST_ERROR = 2e-4  # float32 may be computed in TF32


class Recorder(Protocol):
    """Makes recordings."""

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """What does the same work again on the same memory, and the tensor in which its result then stands."""


class GraphRecorder:
    """Records CUDA graphs, which share their passing memory, for only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See Recorder. Raises RuntimeError where the work does what cannot be recorded."""
        work()  # libraries choose their kernels and make their handles at the first call, which cannot be recorded
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            finally:
                graph.capture_end()
        torch.cuda.synchronize(self._device)
        return graph.replay, result


class Places(Packing):
    """Where sequences stand, as a recording sees it: in a tensor, which changes from batch to batch."""

    @property
    def longest(self) -> int:
        """The most rows that a sequence may have: all of the recording's."""
        return self.filler

    def offsets(self, device: torch.device) -> Tensor:
        """Where each sequence begins; see Packing."""
        return self._offsets[0]


class Recording:
    """The layers of a stack for R rows of at most `most` sequences."""

    def __init__(self, stack: Stack, recorder: Recorder, rows: int) -> None:
        """Raises what the recorder raises.

        Where attention needs a call for each sequence, what is recorded is wrong: it has to be looked at.
        """
        self.rows, self.most = rows, max(4, rows // ROWS_A_SEQUENCE)
        device = stack.device
        self._x_RD = torch.zeros(rows, stack.config.d_model, dtype=stack.dtype, device=device)
        self._offsets_S = torch.full((self.most + 2,), rows, dtype=torch.int32, device=device)
        self._offsets_S[0] = 0
        self._rotation = stack.rotation(torch.zeros(rows, dtype=torch.long, device=device))
        places = Places((), (), self._rotation, rows, [self._offsets_S])
        nothing = Keep([], []).at(None, places)
        self._layers: list[tuple[Callable[[], None], Tensor, Tensor]] = []
        x_RD = self._x_RD
        for layer in stack.layers:
            replay, out_RD = recorder.record(partial(layer, x_RD, places, nothing))
            self._layers.append((replay, x_RD, out_RD))
            x_RD = out_RD
        self._packing: Packing | None = None

    def layer(self, depth: int, x_RD: Tensor, packing: Packing) -> Tensor:
        """What the layer makes of the rows, [R, d] in and out; it stands there until the recording is used again."""
        replay, in_RD, out_RD = self._layers[depth]
        if packing is not self._packing:
            self._place(packing)
        if x_RD.data_ptr() != in_RD.data_ptr():  # else it is what the layer before has just made
            in_RD.copy_(x_RD)
        replay()
        return out_RD

    def _place(self, packing: Packing) -> None:
        """Let the recording know where the sequences of a batch are, and how their queries and keys are turned."""
        places = list(accumulate(packing.lengths, initial=0))
        places += [self.rows] * (self.most + 2 - len(places))
        self._offsets_S.copy_(torch.tensor(places, dtype=torch.int32))
        if self._rotation is not None and packing.rotation is not None:
            self._rotation.cos_T1K.copy_(packing.rotation.cos_T1K)
            self._rotation.sin_T1K.copy_(packing.rotation.sin_T1K)
        self._packing = packing


class Replays:
    """The recordings of a stack, of all sizes."""

    def __init__(self, stack: Stack, recorder: Recorder, sizes: tuple[int, ...] = SIZES) -> None:
        """Raises what the recorder raises, and RuntimeError where a recording is not what the layers are."""
        self._by_rows = {rows: Recording(stack, recorder, rows) for rows in sizes}
        for recording in self._by_rows.values():
            for depth, worst in enumerate(_errors(stack, recording)):
                if not worst < 1:  # NaN compares false
                    raise RuntimeError(f"layer {depth} of {recording.rows} rows is not what was recorded")

    def filler(self, lengths: tuple[int, ...]) -> int:
        """Rows to add to these sequences to fill the smallest recording that takes them; 0 if none does."""
        rows = sum(lengths)
        fitting = (one.rows for one in self._by_rows.values() if rows <= one.rows and len(lengths) <= one.most)
        return next(fitting, rows) - rows

    def of(self, packing: Packing) -> Recording | None:
        """The recording of a packed matrix, filled up as above, if there is one."""
        recording = self._by_rows.get(packing.rows)
        return recording if recording is not None and len(packing.lengths) <= recording.most else None


@torch.inference_mode()
def record(stack: Stack, recorder: Recorder | None = None) -> None:
    """Give the stack recordings of its layers where it is on a GPU and they can be made; else it stays as it is."""
    if recorder is None:
        if stack.device.type != "cuda":
            return
        recorder = GraphRecorder(stack.device)
    try:
        stack.replays = Replays(stack, recorder)
    except Exception as error:
        log.warning("small batches start each kernel by itself: %.200s", error)


def _errors(stack: Stack, recording: Recording) -> Iterator[float]:
    """How far a recording is from each layer, as a part of what is allowed; three sequences, of which one is NaN."""
    rows = recording.rows
    lengths, filler = (rows // 2, 1, rows // 4), rows - rows // 2 - 1 - rows // 4
    generator = torch.Generator().manual_seed(rows)
    x_RD = torch.randn(rows, stack.config.d_model, generator=generator).to(stack.device, stack.dtype)
    good = slice(0, lengths[0] + 1)
    positions_R = torch.cat([torch.arange(n, device=stack.device) for n in (*lengths, filler)])
    packing = Packing((0, 1, 2), lengths, stack.rotation(positions_R), filler)
    nothing = Keep([], []).at(None, packing)
    allowed = 32 * max(torch.finfo(stack.dtype).eps, LEAST_ERROR)
    for depth, layer in enumerate(stack.layers):
        x_RD[good.stop :] = torch.nan
        exact_RD = layer(x_RD, packing, nothing)
        off_GD = (recording.layer(depth, x_RD, packing)[good] - exact_RD[good]).float().abs()
        size_G = exact_RD[good].float().abs().amax(-1)
        yield float((off_GD.amax(-1) / size_G).max()) / allowed
        x_RD = exact_RD
