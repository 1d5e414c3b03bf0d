"""The viewer in a real browser: when its maps and other tabs are there, and what it receives, by length of the text.

Run by `make bench-viewer`; docs/viewer.md has the tables.
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


def tab(page: Page, mark_name: str, click: str) -> tuple[float, int]:
    """Click what opens a tab, or something in it: milliseconds until it is drawn, and the bytes received for it."""
    marks = f"performance.getEntriesByName('headwater:{mark_name}').length"
    before, (_, bytes_before), began = page.evaluate(marks), received(page), page.evaluate("performance.now()")
    page.click(click)
    while page.evaluate(marks) == before:
        page.wait_for_timeout(20)
    idle(page)
    return mark(page, mark_name) - began, received(page)[1] - bytes_before


def measure_tabs(page: Page) -> list[tuple[float, int]]:
    """The other tabs of what is shown: Token, Layer, Stream with norms, and with predictions."""
    return [
        tab(page, "token", "#tab-token"),
        tab(page, "layer", "#tab-layer"),
        tab(page, "stream", "#tab-stream"),
        tab(page, "stream", ".panel-stream label:has-text('Predictions')"),
    ]


def main() -> None:
    """Print both tables."""
    tabs: list[str] = []
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
                times = " | ".join(f"{ms:,.0f} ms, {size / 1e3:,.0f} kB" for ms, size in measure_tabs(page))
                tabs.append(f"| {n:,} | {layer} | {times} |")
                page.close()
        browser.close()
    print("\n| N | layer | Token | Layer | Stream: norms | Stream: predictions |\n|---|---|---|---|---|---|")
    print("\n".join(tabs))


if __name__ == "__main__":
    main()
