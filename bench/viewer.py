"""The viewer in a real browser: when its first map is there, and what it receives, by the length of the text.

Run by `make bench-viewer`; docs/viewer.md has the table.
"""

from typing import Any
from urllib.parse import urlencode

import numpy as np
from playwright.sync_api import Page, sync_playwright

from tests.server import serving
from tests.viewer.browser import ARGUMENTS, chromium

LENGTHS = (16, 256, 2000)
VOCABULARY, LAYERS, HEADS = 49152, 30, 9
PATIENCE_MS = 600_000


def idle(page: Page) -> None:
    """Wait until nothing is under way, and was not for a moment: the next layers are asked for a moment later."""
    for _ in range(2):
        page.wait_for_timeout(300)
        page.wait_for_selector('body[data-busy="0"]')


def mark(page: Page, name: str) -> float:
    """Milliseconds of the last mark of this name since the page was opened."""
    found: float = page.evaluate(f"performance.getEntriesByName('headwater:{name}').at(-1).startTime")
    return found


def received(page: Page) -> tuple[int, int]:
    """Calls of POST /forward so far, and the bytes of their answers with their heads."""
    sizes: list[int] = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/forward')).map(e => e.transferSize)"
    )
    return len(sizes), sum(sizes)


def measure(page: Page, url: str, n: int, layer: int) -> dict[str, Any]:
    """Open a link to n random tokens, look at the map, scroll through all layers, and pick a token."""
    ids = np.random.default_rng(n).integers(0, VOCABULARY, n)
    page.goto(f"{url}/#{urlencode({'kind': 'ids', 'ids': ','.join(map(str, ids)), 'layer': layer})}")
    page.wait_for_selector(".map svg")
    idle(page)
    found: dict[str, Any] = {"n": n, "layer": layer}
    found["map"] = mark(page, "map") - mark(page, "start")
    found["grid"] = mark(page, "grid") - mark(page, "start")
    found["calls"], found["bytes"] = received(page)
    began = page.evaluate("performance.now()")
    page.keyboard.press("Escape")
    page.click(f'.thumb[data-layer="{layer}"][data-head="1"]')
    page.wait_for_selector(f'.map svg[aria-label="attention of layer {layer}, head 1"]')
    found["head"] = mark(page, "map") - began
    for row in page.locator(".grid-row[data-layer]").all()[::4]:
        row.scroll_into_view_if_needed()
        idle(page)
    found["all"] = received(page)[1]
    return found


def main() -> None:
    """Print the table."""
    print("| N | layer | first map, ms | small maps in sight, ms | kB so far | another head, ms | ", end="")
    print("kB after all layers | all maps in float32, MB |\n|---|---|---|---|---|---|---|---|")
    with serving("smollm2-135m-instruct") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        for n in LENGTHS:
            for layer in (0, LAYERS - 1):
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.set_default_timeout(PATIENCE_MS)
                one = measure(page, server.url, n, layer)
                whole = 4 * LAYERS * HEADS * n * n / 1e6
                print(f"| {n:,} | {layer} | {one['map']:,.0f} | {one['grid']:,.0f} | {one['bytes'] / 1e3:,.0f} | "
                      f"{one['head']:,.0f} | {one['all'] / 1e3:,.0f} | {whole:,.1f} |", flush=True)  # fmt: skip
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
