"""API keys: who is let in, what is open to all, and that no key is ever written anywhere."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.api_keys import ApiKeys, KeysFileError
from service.entrance import is_open_to_all
from service.errors import Unauthorized
from tests.server import HEADWATER, Server, environment, serving
from tests.service.calls import problem

KEYS = "# who may call\n\nalice alice-s3cret-key\n  another-s3cret-key  \n"
ALICE = {"Authorization": "Bearer alice-s3cret-key"}
CALL = {"tokens": [1, 2, 3]}


@pytest.fixture(scope="module")
def keyed_server(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS)
    with serving(tiny_directory, "--threads", "1", HEADWATER_API_KEYS_FILE=str(path)) as server:
        yield server


@pytest.fixture
def keyed(keyed_server: Server) -> Iterator[httpx.Client]:
    with keyed_server.client() as client:
        yield client


@pytest.mark.parametrize("key", ["alice-s3cret-key", "another-s3cret-key"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_each_key_of_the_file_lets_in(keyed: httpx.Client, key: str, scheme: str) -> None:
    assert keyed.post("/forward", json=CALL, headers={"Authorization": f"{scheme} {key}"}).status_code == 200
    assert keyed.get("/model", headers={"Authorization": f"{scheme} {key}"}).status_code == 200


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong-key-here", "Basic alice-s3cret-key", "alice-s3cret-key",
               "Bearer alice-s3cret-ke", "Bearer alice-s3cret-keyy", "Bearer alice", "Bearer \u00e4\u00f6\u00fc"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/forward", "/model", "/v2", "/v2/models/tiny/infer", "/nothing"])
def test_without_a_right_key_there_is_a_401_that_says_what_to_send(
    keyed: httpx.Client, header: str | None, path: str
) -> None:
    headers = {} if header is None else {"Authorization": header.encode()}
    method = "POST" if path.endswith(("forward", "infer")) else "GET"
    response = keyed.request(method, path, json=CALL if method == "POST" else None, headers=headers)
    assert response.headers["www-authenticate"] == "Bearer"
    if path.startswith("/v2"):
        assert response.status_code == 401
        assert "error" in response.json()
    else:
        problem(response, 401, "unauthorized")


@pytest.mark.parametrize(
    "path",
    ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready", "/docs", "/openapi.json"],
)
def test_probes_and_the_description_are_open(keyed: httpx.Client, path: str) -> None:
    assert keyed.get(path).status_code == 200


def test_the_description_says_that_a_key_is_needed(keyed: httpx.Client, tiny: httpx.Client) -> None:
    said = keyed.get("/openapi.json").json()
    scheme = said["components"]["securitySchemes"]["key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert said["security"] == [{"key": []}]
    for path, operations in said["paths"].items():
        for operation in operations.values():
            assert (operation.get("security") == []) == is_open_to_all(path)
            assert ("401" in operation["responses"]) != is_open_to_all(path)
    assert "security" not in tiny.get("/openapi.json").json()


def test_the_log_has_the_name_of_a_key_and_never_a_key(keyed_server: Server, keyed: httpx.Client) -> None:
    keyed.post("/forward", json=CALL, headers=ALICE | {"X-Request-Id": "by-alice"})
    keyed.post("/forward", json=CALL, headers={"Authorization": "Bearer wrong-key-here", "X-Request-Id": "by-nobody"})
    assert '"key": "alice"' in keyed_server.wait_for_line('"by-alice"')
    keyed_server.wait_for_line('"by-nobody"')
    for line in keyed_server.lines:
        assert "s3cret" not in line
        assert "wrong-key" not in line


def test_without_keys_none_is_asked_for(tiny: httpx.Client) -> None:
    assert tiny.post("/forward", json=CALL).status_code == 200
    assert tiny.post("/forward", json=CALL, headers={"Authorization": "Bearer whatever"}).status_code == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no key"),
        ("# nothing\n", "there is no key"),
        ("short", "line 1: the key has 5 characters, the least is 8"),
        ("a b c-is-a-long-word", "line 1: has 3 words"),
        ("n/a long-enough-key", "line 1: the name may have letters"),
        ("a long-enough-key\nb long-enough-key\n", "line 2: a key or a name comes a second time"),
        ("a long-enough-key\na other-long-key\n", "line 2: a key or a name comes a second time"),
        ("a k\u00e9y-with-accents", "is not ASCII text"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line_and_without_the_key(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KeysFileError, match=said) as refused:
        ApiKeys.read(path)
    assert "long-enough" not in str(refused.value)


def test_keys_without_a_name_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("first-long-key\nbob second-long-key\nthird-long-key\n")
    keys = ApiKeys.read(path)
    names = [keys.name_of(f"Bearer {one}-long-key") for one in ("first", "second", "third")]
    assert names == ["key-1", "bob", "key-3"]
    with pytest.raises(Unauthorized):
        keys.name_of("Bearer fourth-long-key")


def test_a_missing_file_ends_the_start_with_one_line(tiny_directory: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(HEADWATER), "serve", "--model", str(tiny_directory), "--port", "0"],
        env=environment(HEADWATER_API_KEYS_FILE=str(tmp_path / "none")),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "No such file" in done.stderr.splitlines()[-1]
