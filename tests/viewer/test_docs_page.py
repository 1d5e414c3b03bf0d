"""/docs in a real browser: it needs no other host, and its example runs with two clicks."""

from playwright.sync_api import Browser, expect

from tests.server import Server
from tests.viewer.browser import PATIENCE_MS, Viewer


def test_the_docs_load_from_the_service_alone_and_their_first_example_runs(
    browser: Browser, tiny_server: Server
) -> None:
    viewer = Viewer(browser, tiny_server.url, path="/docs")
    viewer.page.locator(".opblock-post", has_text="/forward").first.locator(".opblock-summary").click()
    viewer.page.locator(".try-out__btn").click()
    viewer.page.locator(".execute").click()
    status = viewer.page.locator(".live-responses-table .response td.response-col_status")
    expect(status).to_have_text("200", timeout=PATIENCE_MS)
    viewer.close()
