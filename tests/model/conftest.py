"""Models that several files of tests share: loaded once, never changed."""

import os

# before transformers is imported: no test may look for a model outside this machine
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from model.checkpoint.load import LoadedModel, load_model
from model.checkpoint.packages import packaged_model
from model.stack import Stack
from tests.model.huggingface import pretrained
from tests.model.tiny import FAMILIES, every_family


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For thousands of runs of very small stacks: threads would wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def smollm2_directory() -> Path:
    return packaged_model("smollm2-135m-instruct", print)


@pytest.fixture(scope="session")
def smollm2(smollm2_directory: Path) -> LoadedModel:
    return load_model(smollm2_directory, name="smollm2")


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_directory: Path) -> nn.Module:
    return pretrained(smollm2_directory)


@pytest.fixture(scope="session")
def mgm_directory() -> Path:
    return packaged_model("mgm", print)


@pytest.fixture(scope="session")
def mgm(mgm_directory: Path) -> LoadedModel:
    return load_model(mgm_directory, name="mgm")


@pytest.fixture(scope="session")
def mgm_reference(mgm_directory: Path) -> nn.Module:
    return pretrained(mgm_directory)


@pytest.fixture(scope="session")
def every_stack(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stack]:
    """A small random stack of each family."""
    directories = every_family(tmp_path_factory.mktemp("families"))
    return {name: load_model(path, name=name).stack for name, path in directories.items()}


@pytest.fixture(params=FAMILIES, scope="session")
def stack(every_stack: dict[str, Stack], request: pytest.FixtureRequest) -> Stack:
    """Each of them in turn."""
    return every_stack[request.param]
