"""How a run over many sequences goes."""

import os
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from headwater_client.checks import flag, integer, kind, not_one
from headwater_client.outputs import Outputs, outputs_json
from headwater_client.retrying import MANY, Retries

Progress = Callable[[int, int | None], None]


class MapFields(TypedDict, total=False):
    """The options of `map`.

    outputs: as in `forward`, for every sequence.
    concurrency: how many calls are under way at once (default 8). The service packs them into shared batches. At most
        twice as many results are held, however many sequences there are; nothing new is begun until some are taken.
    ordered: results come in the order of the inputs (the default), or as they are completed.
    into: a directory to which each answer is written, as INDEX.safetensors, whole or not at all. A later run into it
        asks for what is missing alone; it is refused if the model's weights, the outputs or an input are others.
    on_error: "keep" (the default): a sequence that is refused gives a result with an `error`, and the run goes on.
        "raise": the first one ends it. What concerns all (no service, a wrong key, another model) always does.
    progress: True for a bar (needs tqdm: the extra `progress`), or a function of (done, total or None).
    timeout_ms: a deadline for each call.
    retries: for each call; if not given, ten minutes and as many tries as there is time for: the service may restart.
        Whether there is a service at all is asked first, by the client's own retries.
    """

    outputs: Outputs | None
    concurrency: int
    ordered: bool
    into: str | Path | None
    on_error: Literal["keep", "raise"]
    progress: bool | Progress
    timeout_ms: int | None
    retries: Retries | int


@dataclass(frozen=True)
class MapOptions:
    """The same, checked."""

    outputs: list[Any] | None
    concurrency: int
    ordered: bool
    into: Path | None
    keep_errors: bool
    progress: Progress | None
    close_progress: Callable[[], None]
    timeout_ms: int | None
    retries: Retries


def map_options(given: MapFields, total: int | None = None) -> MapOptions:
    """Raises ValueError with the field's name, TypeError for a name that is no option, ImportError without tqdm."""
    unknown = set(given) - MapFields.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no argument {min(unknown)!r}")
    concurrency, on_error = integer("concurrency", given.get("concurrency", 8), least=1), given.get("on_error", "keep")
    if on_error not in ("keep", "raise"):
        raise ValueError(f"on_error: must be 'keep' or 'raise', not {on_error!r:.30}")
    outputs, into, wanted = given.get("outputs"), given.get("into"), given.get("progress", False)
    if into == "":
        raise ValueError("into: must name a directory, not ''; '.' is the one that the process is in")
    if into is not None and not isinstance(into, str | os.PathLike):
        raise ValueError(f"into: must name a directory, not be {kind(into)}")
    if not (callable(wanted) or wanted is None or isinstance(wanted, bool)):
        raise ValueError(f"progress: must be True, False or a function of (done, total), not {kind(wanted)}")
    timeout_ms, ordered = given.get("timeout_ms"), flag("ordered", given.get("ordered", True))
    retries = Retries.of(given.get("retries", MANY))
    progress, close = _bar(total) if wanted is True else (wanted or None, _nothing)
    return MapOptions(
        None if outputs is None else outputs_json(outputs),
        concurrency,
        ordered,
        None if into is None else Path(into),
        on_error == "keep",
        progress,
        close,
        None if timeout_ms is None else integer("timeout_ms", timeout_ms),
        retries,
    )


def check_inputs(inputs: Any) -> None:
    """Raises ValueError for what is no collection of inputs, and for what is one input by itself."""
    not_one("inputs", inputs)
    if not isinstance(inputs, Iterable | AsyncIterable):
        raise ValueError(f"inputs: must be a collection of inputs, not {kind(inputs)}")


def total_of(inputs: Any) -> int | None:
    """How many there are, where that can be known before."""
    return len(inputs) if hasattr(inputs, "__len__") else None


def _bar(total: int | None) -> tuple[Progress, Callable[[], None]]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: install headwater-client[progress]") from None
    bar = tqdm(total=total, unit="sequence")

    def advance(done: int, total: int | None) -> None:
        bar.update(done - bar.n)

    return advance, bar.close


def _nothing() -> None:
    """Close no bar."""
