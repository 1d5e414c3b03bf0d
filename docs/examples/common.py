"""What the examples share: their command line, and a place for their pictures."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater_client import NotReady, Unreachable


def run(main: Callable[..., Any], **more: str) -> None:
    """Call an example from the command line; `more` has further options and what they are, by name."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the service, with SmolLM2-135M-Instruct")
    parser.add_argument("--pictures", type=Path, help="a directory for pictures; none are made if not given")
    for name, about in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=about)
    options = vars(parser.parse_args())
    try:
        main(**options)
    except (Unreachable, NotReady) as error:
        sys.exit(f"{error.detail}; is a service running at {options['url']}? `make run` starts one")


@contextmanager
def picture(directory: Path | None, name: str, **size: Any) -> Iterator[Any]:
    """The axes of a picture that is written to the directory as NAME.png; None where no pictures are wanted."""
    if directory is None:
        yield None
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # not pyplot: there may be no screen

    figure = Figure(layout="constrained", **size)
    FigureCanvasAgg(figure)
    yield figure.subplots()
    directory.mkdir(parents=True, exist_ok=True)
    figure.savefig(directory / f"{name}.png", dpi=120)
