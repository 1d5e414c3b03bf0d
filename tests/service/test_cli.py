"""The command: every knob in two places, one line where something is wrong, and an end that is an end."""

import json
import multiprocessing
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from model.checkpoint.packages import packaged_model
from service.cli import _parser, _settings, main
from service.settings import Settings
from tests.server import HEADWATER, START_SECONDS, environment, serving
from tests.service.calls import ask, ids, same_bits

Run = Callable[..., tuple[int, str]]

# Each setting, with a value that is not its default, as a user writes it and as it must arrive.
VALUES: dict[str, tuple[str, Any]] = {
    "revision": ("v1", "v1"),
    "model": ("somewhere", "somewhere"),
    "name": ("thames", "thames"),
    "host": ("127.0.0.2", "127.0.0.2"),
    "port": ("1009", 1009),
    "dtype": ("bfloat16", "bfloat16"),
    "device": ("cuda:1", "cuda:1"),
    "threads": ("3", 3),
    "ignore_config_keys": ("one, two", ("one", "two")),
    "cors_origins": ("http://a.example,http://b.example", ("http://a.example", "http://b.example")),
    "api_keys_file": ("some/where", Path("some/where")),
    "log_level": ("warning", "warning"),
}


def value_of(setting: str) -> tuple[str, Any]:
    """For what is not in the table: a prime, which is in nobody's default."""
    if setting in VALUES:
        return VALUES[setting]
    annotation = str(Settings.model_fields[setting].annotation)
    if "bool" in annotation:
        return "true", True
    return ("10007.5", 10007.5) if "float" in annotation else ("10007", 10007)


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HEADWATER_") and name != "HEADWATER_CACHE_DIR":
            monkeypatch.delenv(name)


@pytest.mark.parametrize("setting", Settings.model_fields)
def test_every_setting_is_an_option_and_a_variable_and_the_option_wins(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = value_of(setting)
    option = f"--{setting.replace('_', '-')}"
    default = getattr(_settings(_parser().parse_args(["serve"])), setting)
    assert default != value
    assert getattr(_settings(_parser().parse_args(["serve", option, text])), setting) == value
    monkeypatch.setenv(f"HEADWATER_{setting.upper()}", text)
    assert getattr(_settings(_parser().parse_args(["serve"])), setting) == value
    if default not in (None, ()):
        assert getattr(_settings(_parser().parse_args(["serve", option, str(default)])), setting) == default


@pytest.mark.parametrize("setting", Settings.model_fields)
def test_help_tells_of_every_setting_its_variable_and_its_default(
    setting: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert f"--{setting.replace('_', '-')} " in told
    assert f"HEADWATER_{setting.upper()}" in told
    default = Settings.model_fields[setting].default
    if default not in (None, (), False):
        assert f"[{default}]" in told


# --- what is wrong is one line and code 2


def _ending(arguments: list[str], variables: dict[str, str], stderr: Path) -> None:
    """In a process of its own: run the command with its stderr in a file, and end with its exit code."""
    os.environ.update(variables)
    with stderr.open("w") as file:
        os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
        code = 70
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            sys.stderr.flush()
            os._exit(code)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the command to its end, in a fork of a process that has it imported: exit code and stderr."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["service.cli", __name__])

    def command(*arguments: str | Path, **variables: str) -> tuple[int, str]:
        stderr = tmp_path / "stderr"
        process = context.Process(target=_ending, args=([str(a) for a in arguments], variables, stderr), daemon=True)
        process.start()
        process.join(START_SECONDS)
        if process.is_alive():
            process.kill()
            raise AssertionError(f"does not end: {stderr.read_text()}")
        assert process.exitcode is not None
        return process.exitcode, stderr.read_text()

    return command


def one_line(ended: tuple[int, str], *parts: str | Path) -> None:
    """Exit code 2 and a single line that names all of the parts; before it may stand where the service listens."""
    code, stderr = ended
    assert code == 2, stderr
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if line and not line.startswith("headwater: listening")]
    assert len(lines) == 1, stderr
    for part in parts:
        assert str(part) in lines[0]


def copy_of(directory: Path, destination: Path, **config: Any) -> Path:
    """A copy of a model whose config has these keys."""
    shutil.copytree(directory, destination)
    path = destination / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return destination


def serve(run: Run, model: str | Path, *options: str, **variables: str) -> tuple[int, str]:
    return run("serve", "--model", model, "--port", "0", *options, **variables)


def test_a_path_that_is_not_there(run: Run, tmp_path: Path) -> None:
    one_line(serve(run, tmp_path / "nowhere"), tmp_path / "nowhere")
    one_line(serve(run, "no-such-package"), "no-such-package", "mgm", "smollm2-135m-instruct")


def test_a_directory_without_a_model(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    one_line(serve(run, tmp_path), "config.json")
    without = copy_of(tiny_directory, tmp_path / "without")
    (without / "model.safetensors").unlink()
    one_line(serve(run, without), "model.safetensors")


def test_a_config_that_is_not_json(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    broken = copy_of(tiny_directory, tmp_path / "broken")
    (broken / "config.json").write_text("{")
    one_line(serve(run, broken), broken / "config.json")


def test_a_family_that_is_not_known(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    one_line(serve(run, copy_of(tiny_directory, tmp_path / "x", model_type="mamba")), "mamba", "textbook", "gpt2")


def test_a_config_key_that_nobody_knows(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    one_line(serve(run, copy_of(tiny_directory, tmp_path / "x", attention_sinks=4)), "attention_sinks")


def test_a_shape_that_is_not_the_files(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    one_line(serve(run, copy_of(tiny_directory, tmp_path / "x", d_v=11)), "W_V", "5", "11")
    one_line(serve(run, copy_of(tiny_directory, tmp_path / "y", n_layers=2)), "layers.2.")
    one_line(serve(run, copy_of(tiny_directory, tmp_path / "z", n_layers=4)), "layers.3.")


def test_weights_that_are_cut_off(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    cut = copy_of(tiny_directory, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    one_line(serve(run, cut), weights)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "65536"),
        ("--port", "-1"),
        ("--port", "http"),
        ("--dtype", "float8"),
        ("--dtype", "float64"),
        ("--threads", "0"),
        ("--max-tokens", "0"),
        ("--max-body-bytes", "many"),
        ("--deadline-seconds", "-5"),
        ("--log-level", "loud"),
    ],
)
def test_a_value_that_a_setting_cannot_have(run: Run, tiny_directory: Path, option: str, value: str) -> None:
    variable = f"HEADWATER_{option[2:].replace('-', '_').upper()}"
    one_line(run("serve", "--model", tiny_directory, f"{option}={value}"), option, value)
    one_line(run("serve", "--model", tiny_directory, **{variable: value}), variable, value)


def test_a_port_that_is_in_use(run: Run, tiny_directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        one_line(run("serve", "--model", tiny_directory, "--port", port), port)


def test_a_host_that_is_not_ours(run: Run, tiny_directory: Path) -> None:
    one_line(serve(run, tiny_directory, "--host", "192.0.2.7"), "192.0.2.7")
    one_line(serve(run, tiny_directory, "--host", "no such host"), "no such host")


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is here")
def test_cuda_where_there_is_none(run: Run, tiny_directory: Path) -> None:
    one_line(serve(run, tiny_directory, "--device", "cuda"), "device", "cuda")


def test_a_device_that_does_not_exist(run: Run, tiny_directory: Path) -> None:
    one_line(serve(run, tiny_directory, "--device", "abacus"), "device", "abacus")


def test_a_device_that_computes_nothing(run: Run, tiny_directory: Path) -> None:
    one_line(serve(run, tiny_directory, "--device", "meta"), "device", "meta")


# --- init and convert

SIZES = "--layers 2 --d-model 22 --heads 3 --d-k 5 --d-v 7 --d-ff 13 --vocab-size 17 --max-positions 19".split()


def test_init_is_the_same_for_the_same_seed_alone(run: Run, tmp_path: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "11")):
        assert run("init", tmp_path / name, *SIZES, "--seed", seed)[0] == 0
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    "wrong",
    [
        ("--layers", "0"),
        ("--d-model", "0"),
        ("--heads", "0"),
        ("--heads", "-3"),
        ("--d-k", "0"),
        ("--d-ff", "-1"),
        ("--vocab-size", "-1"),
        ("--max-positions", "0"),
        ("--activation", "sine"),
        ("--norm-eps", "-1"),
        ("--norm-eps", "nan"),
    ],
)
def test_init_refuses_sizes_that_make_no_model(run: Run, tmp_path: Path, wrong: tuple[str, str]) -> None:
    one_line(run("init", tmp_path / "made", *SIZES, f"{wrong[0]}={wrong[1]}"))
    assert list(tmp_path.iterdir()) == [tmp_path / "stderr"]


def test_init_never_writes_over_what_is_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept").touch()
    one_line(run("init", tmp_path / "there", *SIZES), tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["kept"]


def as_pickle(directory: Path, destination: Path) -> Path:
    """A model as older tools write it: config.json and pytorch_model.bin."""
    destination.mkdir()
    shutil.copyfile(directory / "config.json", destination / "config.json")
    torch.save(load_file(directory / "model.safetensors"), destination / "pytorch_model.bin")
    return destination


def test_convert_makes_a_pickle_into_what_is_served(run: Run, tmp_path: Path, tiny: Any, tiny_directory: Path) -> None:
    old = as_pickle(tiny_directory, tmp_path / "old")
    one_line(serve(run, old), "model.safetensors", "headwater convert")
    assert run("convert", old, tmp_path / "new")[0] == 0
    assert not list((tmp_path / "new").glob("*.bin"))
    asked = {"tokens": ids(7), "outputs": ["layers.2.z", "logits"]}
    with serving(tmp_path / "new", "--threads", "1") as server, server.client() as client:
        found = ask(client, asked)
    for name, array in ask(tiny, asked).items():
        assert same_bits(found[name], array)


def test_convert_never_writes_over_what_is_there(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    old = as_pickle(tiny_directory, tmp_path / "old")
    (tmp_path / "there").mkdir()
    one_line(with_progress_dropped(run("convert", old, tmp_path / "there")), tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def with_progress_dropped(ended: tuple[int, str]) -> tuple[int, str]:
    code, stderr = ended
    return code, "".join(line for line in stderr.splitlines(True) if not line.startswith("headwater: reading"))


class Payload:
    """Runs code where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_convert_reads_tensors_and_never_code(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    old = as_pickle(tiny_directory, tmp_path / "old")
    for written in (pickle.dumps(Payload(tmp_path / "it-ran")), None):
        if written is None:
            torch.save({"E": Payload(tmp_path / "it-ran")}, old / "pytorch_model.bin")
        else:
            (old / "pytorch_model.bin").write_bytes(written)
        one_line(with_progress_dropped(run("convert", old, tmp_path / "new")), "pytorch_model.bin")
        assert not (tmp_path / "it-ran").exists()
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", struct.pack("<Q", 2**40), save({"E": torch.zeros(3)})])
def test_convert_says_that_a_file_is_no_pickle_of_weights(
    run: Run, tmp_path: Path, tiny_directory: Path, content: bytes
) -> None:
    old = as_pickle(tiny_directory, tmp_path / "old")
    (old / "pytorch_model.bin").write_bytes(content)
    one_line(with_progress_dropped(run("convert", old, tmp_path / "new")), "pytorch_model.bin")
    assert not (tmp_path / "new").exists()


def test_convert_of_nothing(run: Run, tmp_path: Path, tiny_directory: Path) -> None:
    one_line(run("convert", tmp_path / "nowhere", tmp_path / "new"), tmp_path / "nowhere")
    one_line(run("convert", tiny_directory, tmp_path / "new"), "model.safetensors")


# --- the real process


def test_a_model_made_by_init_serves_with_its_options_opens_no_pickle_and_ends_with_0(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert run("init", made, *SIZES, "--seed", "7", "--activation", "gelu")[0] == 0
    for name in ("pytorch_model.bin", "training_args.bin"):
        (made / name).write_bytes(pickle.dumps(Payload(tmp_path / "it-ran")))
    variables = {"HEADWATER_NAME": "from-the-variable", "HEADWATER_MAX_INPUTS": "17", "HEADWATER_LOG_LEVEL": "info"}
    with serving(made, "--name", "from-the-option", "--threads", "1", **variables) as server, server.client() as client:
        about = client.get("/model").json()
        found = ask(client, {"tokens": [16, 0, 5], "outputs": ["layers.1.v", "layers.1.k", "logits"]})
        assert "from-the-option" in server.wait_for_line("serving")
    assert server.process.returncode == 0
    assert not (tmp_path / "it-ran").exists()
    assert about["name"] == "from-the-option"
    assert about["limits"]["max_inputs"] == 17
    assert [about[key] for key in ("layers", "d_model", "heads", "d_k", "d_v", "d_ff")] == [2, 22, 3, 5, 7, 13]
    assert [about[key] for key in ("vocab_size", "max_positions")] == [17, 19]
    assert {name: array.shape for name, array in found.items()} == {
        "layers.1.v": (3, 3, 7),
        "layers.1.k": (3, 3, 5),
        "logits": (3, 17),
    }


def test_the_command_as_users_type_it_ends_with_2_and_one_line(tmp_path: Path) -> None:
    command = [str(HEADWATER), "serve", "--model", str(tmp_path / "nowhere"), "--port", "0"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=START_SECONDS)
    one_line((ended.returncode, ended.stderr), tmp_path / "nowhere")
    assert ended.stdout == ""


def test_a_packaged_model_is_served_under_its_name(mgm_client: Any) -> None:
    assert packaged_model("mgm", print).is_dir()
    about = mgm_client.get("/model").json()
    assert [about[key] for key in ("name", "family", "layers", "d_model", "vocab_size", "max_positions")] == [
        *("mgm", "gpt2", 8, 256, 9669, 512)
    ]
