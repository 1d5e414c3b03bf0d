"""One browser for all tests of the page, and a server that wants a key."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

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
def keyed(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose API needs a key."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"reader {KEY}\n")
    with serving(tiny_directory, "--threads", "1", HEADWATER_API_KEYS_FILE=str(path)) as server:
        yield server
