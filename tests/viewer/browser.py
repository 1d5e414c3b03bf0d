"""A real browser before a real server, and what it did: requests, messages of its console, errors of scripts."""

import os
import shutil
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, expect
from safetensors.numpy import load

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PATIENCE_MS = 60_000
HOW = "no chromium found: `make browser` installs it (Debian: apt-get install chromium fonts-dejavu-core)"


def chromium() -> str:
    """Where the browser is. Without one the test is skipped, or fails where HEADWATER_NEED_BROWSER=1 asks for one."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("HEADWATER_NEED_BROWSER") == "1":
            pytest.fail(HOW)
        pytest.skip(HOW)
    return found


def tensors(client: httpx.Client, **call: Any) -> dict[str, Any]:
    """The API's own answer to a call."""
    response = client.post("/forward", json=call, headers={"Accept": "application/x-safetensors"})
    return dict(load(response.raise_for_status().content))


def maps(client: httpx.Client, layer: int, **call: Any) -> np.ndarray[Any, Any]:
    """The API's maps of a layer, [heads, queries, keys] in float32."""
    (found,) = tensors(client, outputs=[f"layers.{layer}.attn_probs"], **call).values()
    return np.asarray(found)


def same(told: str | None, value: np.float32) -> bool:
    """Whether a number on the page is the API's, alone and in company: probabilities differ by 2e-5 at most."""
    return told is not None and abs(float(told) - float(value)) <= 2e-5


def hold(route: Route) -> None:
    """Give a call no answer."""


class Viewer:
    """A window of its own on a server's page, at an address with this behind the #."""

    def __init__(self, browser: Browser, url: str, /, path: str = "/", **link: Any) -> None:
        self.url = url
        self.context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.requests: list[Request] = []
        self.console: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url + path + (f"#{urlencode(link)}" if link else ""))

    def settled(self) -> "Viewer":
        """This window, when all that it asked for is drawn: of what is seen nothing is missing."""
        self.page.wait_for_selector('body[data-busy="0"]:not(.stale)')
        self.page.wait_for_selector('.panel:not([hidden]) svg[role="img"]')
        self.page.wait_for_selector('[aria-busy="true"]', state="detached")
        return self

    def shows_map(self, layer: int, head: int) -> "Viewer":
        """This window, when the large map is that of a head."""
        expect(self.page.locator(".map svg")).to_have_attribute(
            "aria-label", f"attention of layer {layer}, head {head}", timeout=PATIENCE_MS
        )
        return self.settled()

    def type(self, text: str) -> "Viewer":
        """Type a text in the place of what is there, and show it."""
        self.page.fill("#field", text)
        self.page.click("#go")
        return self.settled()

    def tokens(self) -> list[str]:
        """What the line of tokens reads."""
        return self.page.locator(".chip").all_text_contents()

    def point_at(self, query: int, key: int) -> str:
        """Move the pointer to a cell of the large map; the value that the page tells."""
        map_svg = self.page.locator(".map svg")
        box = map_svg.bounding_box()
        assert box is not None
        scale = box["width"] / float(map_svg.get_attribute("width") or 0)
        grid = self.page.locator(".map svg > image")
        left, top, width, height = (float(grid.get_attribute(name) or 0) for name in ("x", "y", "width", "height"))
        rows, keys = (int(grid.get_attribute(name) or 0) for name in ("data-rows", "data-keys"))
        first_row, first_key = (int(grid.get_attribute(name) or 0) for name in ("data-row", "data-key"))
        x = left + width * (key - first_key + 0.5) / keys
        y = top + height * (query - first_row + 0.5) / rows
        map_svg.hover(position={"x": x * scale, "y": y * scale})
        told = self.page.locator(f'#readout output[data-query="{query}"][data-key="{key}"]')
        return told.text_content() or ""

    def lit(self) -> list[int]:
        """Positions of the tokens that are lit up."""
        found: list[int] = self.page.locator(".chip").evaluate_all(
            "chips => chips.filter(chip => chip.style.backgroundColor).map(chip => Number(chip.dataset.at))"
        )
        return found

    def calls(self) -> list[Any]:
        """Bodies of the calls to POST /forward so far, of those in JSON."""
        forward = [r for r in self.requests if urlsplit(r.url).path.endswith("/forward")]
        return [r.post_data_json for r in forward if r.headers["content-type"] == "application/json"]

    def close(self, *, refused: int = 0) -> None:
        """Close the window; it made no error, but the console names so many refusals, and asked no other host."""
        # a machine that is slow today may be full for a moment: the page waits, and the browser tells of it
        said = [line for line in self.console if not line.startswith(("log", "info")) and "status of 429" not in line]
        told = [line for line in said if "the server responded with a status of" in line]
        self.page.unroute_all(behavior="ignoreErrors")  # what is still under way needs no answer
        self.context.close()
        assert self.errors == []
        assert len(told) == refused, said
        assert [line for line in said if line not in told] == [], said
        hosts = {urlsplit(r.url).netloc for r in self.requests if urlsplit(r.url).scheme not in ("data", "blob")}
        assert hosts == {urlsplit(self.url).netloc}
