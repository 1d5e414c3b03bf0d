"""One server for each model, and one browser, for all tests of the page."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from model.checkpoint.initialise import initialise
from tests.server import Server, serving
from tests.viewer.browser import ARGUMENTS, chromium

KEY = "viewer-s3cret-key"


# not for the session: while it is there, its event loop counts as running in this thread, and asyncio.run refuses
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def smollm2() -> Iterator[Server]:
    """A causal model with a tokenizer."""
    with serving("smollm2-135m-instruct") as server:
        yield server


@pytest.fixture(scope="package")
def smollm2_api(smollm2: Server) -> Iterator[httpx.Client]:
    with smollm2.client() as client:
        yield client


@pytest.fixture(scope="package")
def minilm() -> Iterator[Server]:
    """A model that looks both ways."""
    with serving("minilm") as server:
        yield server


@pytest.fixture(scope="package")
def ids_only_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("viewer") / "tiny"
    sizes = {"n_layers": 3, "d_model": 30, "n_heads": 2, "d_k": 7, "d_v": 5, "d_ff": 53}
    initialise(directory, seed=11, vocab_size=101, max_positions=61, **sizes)
    return directory


@pytest.fixture(scope="package")
def ids_only(ids_only_directory: Path) -> Iterator[Server]:
    """A model without a tokenizer."""
    with serving(ids_only_directory, "--threads", "1") as server:
        yield server


@pytest.fixture(scope="package")
def keyed(ids_only_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose API needs a key."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"reader {KEY}\n")
    with serving(ids_only_directory, "--threads", "1", HEADWATER_API_KEYS_FILE=str(path)) as server:
        yield server
