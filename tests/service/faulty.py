"""The service with faults planted in its model, for tests; as a program of its own, it takes what `headwater` takes.

A sequence is at fault by its first token id. Where the model is to be held, it waits between layers until the test
lets it go: the directory FAULTS holds a file `held` from then on, and `go` is what it waits for.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import service.assembly
from service.cli import main

FAILS, NO_MEMORY, HOLDS, DIES = 90, 91, 92, 93
AT_LAYER = 2  # two layers have run, and have given what was asked of them
SECONDS = 30.0
LATER = "LATER" in os.environ or None  # results come as from a device that runs by itself
HERE = Path(os.environ.get("FAULTS", "."))

begin = service.assembly.begin


class Died(BaseException):
    """What no handler of exceptions catches."""


def faulty_run(
    stack: Any, sequences: list[Any], sinks: list[Any], is_wanted: Callable[[], bool] = lambda: True
) -> Callable[[], None] | None:
    """A run that fails, or is held, as its sequences say."""
    first = {int(one.rows.flat[0]) for one in sequences if one.kind == "tokens"}
    layer = -1

    def with_faults() -> bool:
        nonlocal layer
        layer += 1
        with (HERE / "layers").open("a") as file:
            file.write(f"{len(sequences)} sequences, layer {layer}\n")
        if layer == AT_LAYER:
            if HOLDS in first:
                hold()
            if FAILS in first:
                raise RuntimeError("planted")
            if NO_MEMORY in first:
                raise RuntimeError("DefaultCPUAllocator: not enough memory: planted")
            if DIES in first:
                raise Died
        return is_wanted()

    return begin(stack, sequences, sinks, with_faults, later=LATER)


def hold() -> None:
    """Wait for the test."""
    (HERE / "held").touch()
    deadline = time.monotonic() + SECONDS
    while not (HERE / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    (HERE / "held").unlink()
    (HERE / "go").unlink(missing_ok=True)


if __name__ == "__main__":
    service.assembly.begin = faulty_run  # type: ignore[assignment]
    sys.exit(main())
