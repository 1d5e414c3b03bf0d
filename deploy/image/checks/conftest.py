"""The image is built once, from a copy of the checkout, in a storage of its own of which nothing is left at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.load.requests import POSITIONS, VOCABULARY
from deploy.image.checks.answers import OUTPUTS, TOKENS
from deploy.image.checks.build import IMAGE, build, make_base, make_context
from deploy.image.checks.store import Store
from deploy.image.checks.tools import why_not
from model.checkpoint.initialise import initialise
from tests.server import serving
from tests.service.calls import ask


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    store = Store()
    try:
        yield store
    finally:
        store.close()
    assert not store.folder.exists()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with the vocabulary and positions of the load's requests, readable for everyone."""
    directory = tmp_path_factory.mktemp("image") / "small"
    initialise(
        directory, seed=5, n_layers=6, d_model=256, n_heads=8, d_ff=1024, vocab_size=VOCABULARY, max_positions=POSITIONS
    )
    return directory


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return make_context(tmp_path_factory.mktemp("context"), model)


@pytest.fixture(scope="session")
def base(store: Store) -> str:
    return make_base(store)


@pytest.fixture(scope="session")
def image(store: Store, context: Path, base: str) -> str:
    """The image by default, built."""
    build(store, context, base, IMAGE)
    return IMAGE


@pytest.fixture(scope="session")
def expected(model: Path) -> dict[str, Any]:
    """What the same model answers outside of a container."""
    with serving(model, "--threads", "1") as server, server.client() as client:
        return ask(client, {"tokens": TOKENS, "outputs": OUTPUTS})
