"""The page's files as they are served: complete, safe, cached by tag, and open without key or model."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from service.routes.viewer import CONTENT_SECURITY_POLICY
from tests.server import Server

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path.relative_to(ROOT / "viewer").as_posix()
    for path in (ROOT / "viewer").rglob("*")
    if path.suffix in (".html", ".css", ".js", ".svg")
)
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@pytest.fixture
def client(tiny_server: Server) -> Iterator[httpx.Client]:
    with tiny_server.client() as found:
        yield found


def source(name: str) -> str:
    return (ROOT / "viewer" / name).read_text(encoding="utf-8")


def test_the_page_stands_at_the_root(client: httpx.Client) -> None:
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text == source("index.html")
    assert client.head("/").headers["etag"] == response.headers["etag"]
    assert client.post("/").status_code == 405


def test_a_browser_is_told_of_every_module_at_once() -> None:
    named = re.findall(r'<link rel="modulepreload" href="viewer/([^"]+)">', source("index.html"))
    assert sorted([*named, "js/main.js"]) == [name for name in FILES if name.endswith(".js")]


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_what_it_is_with_the_policy(client: httpx.Client, name: str) -> None:
    response = client.get(f"/viewer/{name}")
    assert response.status_code == 200
    assert response.content == (ROOT / "viewer" / name).read_bytes()
    assert response.headers["content-type"].partition(";")[0] == TYPES[Path(name).suffix]
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"


def test_the_policy_allows_nothing_but_the_service_itself() -> None:
    policy = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("path", ["/", "/viewer/js/main.js"])
def test_a_browser_that_has_the_file_is_told_so(client: httpx.Client, path: str) -> None:
    first = client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert again.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content


@pytest.mark.parametrize(
    "path",
    ["", "nothing.js", "js", "js/", "../service/app.py", "%2e%2e/pyproject.toml", "__init__.py", "js/views/README.md"],
)
def test_what_is_no_file_of_the_page_is_not_there(client: httpx.Client, path: str) -> None:
    response = client.get(f"/viewer/{path}")
    assert response.status_code == 404
    assert response.json()["code"] == "not_found"


def test_the_page_needs_no_key_but_the_api_does(keyed: Server) -> None:
    with keyed.client() as client:
        assert client.get("/").status_code == 200
        assert {client.get(f"/viewer/{name}").status_code for name in FILES} == {200}
        assert client.get("/model").status_code == client.post("/forward", json={}).status_code == 401


def test_whatever_the_page_and_its_modules_load_is_served(client: httpx.Client) -> None:
    waiting, seen = ["/"], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        response = client.get(path)
        assert response.status_code == 200, path
        if path == "/":
            found = re.findall(r'(?:src|href)="([^"#]+)"', response.text)
        else:
            found = re.findall(r'(?:from|import) "([^"]+)"', response.text)
        waiting += [urljoin(path, link) for link in found if link != "docs"]
    assert {f"/viewer/{name}" for name in FILES if name != "index.html"} <= seen, "a file that nothing loads"


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host_or_holds_code_in_its_markup(name: str) -> None:
    text = source(name).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//\w+\.\w+/|@import|url\(", text)
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", text)
    # whatever a model or a caller wrote becomes text, never markup or code
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text), "nothing is kept"


def test_all_addresses_of_the_page_are_relative() -> None:
    for link in re.findall(r'(?:src|href)="([^"]+)"', source("index.html")):
        assert not link.startswith("/"), link
    for name in FILES:
        assert not re.search(r'"/(forward|model|docs|viewer)', source(name)), name


def test_the_page_links_to_the_docs(client: httpx.Client) -> None:
    assert 'href="docs"' in client.get("/").text
    assert client.get("/docs").status_code == 200
