"""Everything is built once; a test that takes `built` runs for each choice."""

import pytest

from deploy.tests.choices import TOOLS, Choice, build_all, every_choice
from deploy.tests.manifests import Manifests

CHOICES = every_choice()


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[Choice, Manifests]:
    assert (TOOLS / "kubectl").exists(), f"there is no kubectl in {TOOLS}: `make deploy-test` installs it"
    built = build_all(CHOICES, tmp_path_factory.mktemp("kustomizations"))
    return {choice: Manifests(manifests) for choice, manifests in built.items()}


@pytest.fixture(params=CHOICES, ids=str)
def choice(request: pytest.FixtureRequest) -> Choice:
    found: Choice = request.param
    return found


@pytest.fixture
def built(choice: Choice, everything: dict[Choice, Manifests]) -> Manifests:
    return everything[choice]
