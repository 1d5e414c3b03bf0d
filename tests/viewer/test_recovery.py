"""The page after what went wrong: a view left too early, a service that was away, another model, a key that is none."""

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect

from model.checkpoint.initialise import initialise
from tests.server import Server, serving
from tests.viewer.browser import Viewer, hold
from tests.viewer.conftest import KEY

BUSY = {
    "status": 429,
    "headers": {"Retry-After": "60", "Content-Type": "application/problem+json"},
    "body": '{"title": "Full", "detail": "the queue is full", "code": "busy"}',
}


def close_after_outage(viewer: Viewer) -> None:
    """Close the window, which was right to find no service for a while."""
    lost = [line for line in viewer.console if "net::ERR_" in line]
    assert lost
    viewer.console = [line for line in viewer.console if line not in lost]
    viewer.close()


def behind(viewer: Viewer, server: Server | None) -> None:
    """From now on another server answers at the address of the page, or none does."""

    def pass_on(route: Route) -> None:
        if server is None:
            route.abort("connectionrefused")
        else:
            route.fulfill(response=route.fetch(url=server.url + urlsplit(route.request.url).path))

    viewer.page.unroute_all()
    viewer.page.route("**/*", pass_on)


@pytest.fixture(scope="module")
def same_name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another model under the name of the tiny one."""
    directory = tmp_path_factory.mktemp("other") / "tiny"
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 4, "d_k": 4, "d_v": 4, "d_ff": 20}
    initialise(directory, seed=5, vocab_size=101, max_positions=61, **sizes)
    with serving(directory, "--threads", "1") as server:
        yield server


@pytest.mark.parametrize("tab", ["stream", "token", "layer"])
def test_a_view_that_is_left_before_its_answer_came_asks_again_when_it_is_shown(
    browser: Browser, tiny_server: Server, tab: str
) -> None:
    viewer = Viewer(browser, tiny_server.url, kind="ids", ids="5,7,11").settled()
    viewer.page.route("**/forward", hold)
    with viewer.page.expect_request("**/forward"):
        viewer.page.click(f"#tab-{tab}")
    viewer.page.click("#tab-heads")
    viewer.page.unroute_all()
    viewer.page.click(f"#tab-{tab}")
    viewer.settled()
    assert viewer.page.locator(f'.panel-{tab} svg[role="img"]').first.is_visible()
    viewer.close()


def test_views_that_failed_while_the_service_was_away_try_again_and_the_message_goes(
    browser: Browser, tiny_server: Server
) -> None:
    viewer = Viewer(browser, tiny_server.url, kind="ids", ids="5,7,11").settled()
    behind(viewer, None)
    problem = viewer.page.locator("#problem")
    viewer.page.click("#tab-stream")
    expect(problem).to_contain_text("cannot be reached")
    viewer.page.click("#tab-token")
    expect(viewer.page.locator("body")).to_have_attribute("data-busy", "0")
    behind(viewer, tiny_server)
    for tab in ("stream", "token"):
        viewer.page.click(f"#tab-{tab}")
        viewer.settled()
        assert problem.is_hidden()
    close_after_outage(viewer)


def test_a_wait_that_is_given_up_is_not_told_any_longer(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url, kind="ids", ids="5,7,11").settled()
    viewer.page.route("**/forward", lambda route: route.fulfill(**BUSY))
    viewer.page.click("#tab-stream")
    status = viewer.page.locator("#status")
    expect(status).to_contain_text("the queue is full. Asking again in 60 s")
    viewer.page.unroute_all()
    viewer.page.click("#tab-heads")
    expect(status).not_to_contain_text("Asking again")
    viewer.close()


def test_a_refusal_that_nobody_waits_for_any_longer_is_not_told(browser: Browser, tiny_server: Server) -> None:
    """Given up in the middle of its body."""
    viewer = Viewer(browser, tiny_server.url, kind="ids", ids="5,7,11").settled()
    viewer.page.evaluate(
        """() => {
          const real = window.fetch;
          window.fetch = async (path, { signal }) => {
            window.fetch = real;
            document.body.dataset.refused = "begun";
            const body = new ReadableStream({ start: (held) => signal.onabort = () => held.error(signal.reason) });
            return new Response(body, { status: 422 });
          };
        }"""
    )
    viewer.page.fill("#field", "13")
    viewer.page.click("#go")
    viewer.page.wait_for_selector("body[data-refused=begun]")
    viewer.type("17, 19")
    assert viewer.tokens() == ["#17", "#19"]
    assert viewer.page.locator("#problem").is_hidden()
    viewer.close()


def test_while_an_input_is_refused_the_views_stay_as_they_are_and_follow_with_the_next(
    browser: Browser, tiny_server: Server
) -> None:
    viewer = Viewer(browser, tiny_server.url, kind="ids", ids="5,7,11", tab="layer").settled()
    drawn = viewer.page.locator('.layer-left svg[role="group"]')
    viewer.page.fill("#field", "101")  # one more than the vocabulary has
    viewer.page.click("#go")
    expect(viewer.page.locator("#problem")).to_contain_text("101")
    viewer.page.locator(".panel-layer").get_by_label("Layer", exact=True).select_option("2")
    expect(viewer.page).to_have_url(re.compile("layer=2"))
    expect(drawn).to_have_attribute("aria-label", "layer 0 of tiny")
    viewer.type("13")
    expect(drawn).to_have_attribute("aria-label", "layer 2 of tiny")
    viewer.close(refused=1)


def test_a_key_that_no_header_can_hold_is_named_and_another_can_be_given(browser: Browser, keyed: Server) -> None:
    viewer = Viewer(browser, keyed.url)
    field, problem = viewer.page.locator("#key-field"), viewer.page.locator("#problem")
    field.fill("“" + KEY + "”")
    field.press("Enter")
    expect(problem).to_contain_text("That is no API key")
    field.fill(KEY)
    field.press("Enter")
    viewer.settled()
    assert problem.is_hidden()
    viewer.close(refused=1)


def test_show_asks_for_the_model_again_when_the_first_time_failed(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url + "/docs", path="")
    viewer.page.route("**/model", lambda route: route.abort())
    viewer.page.goto(f"{tiny_server.url}/#kind=ids&ids=5,7,11")
    expect(viewer.page.locator("#problem")).to_contain_text("cannot be reached")
    viewer.page.unroute_all()
    viewer.page.click("#go")
    viewer.settled()
    assert viewer.tokens() == ["#5", "#7", "#11"]
    assert viewer.page.locator("#problem").is_hidden()
    viewer.url = tiny_server.url
    close_after_outage(viewer)


def was_away(viewer: Viewer) -> None:
    """A call of the page finds no service."""
    behind(viewer, None)
    viewer.page.click("#go")
    expect(viewer.page.locator("#problem")).to_contain_text("cannot be reached")
    viewer.console.clear()  # it tells of the call


def was_in_the_background(viewer: Viewer) -> None:
    """The page is looked at again."""
    viewer.page.evaluate("document.dispatchEvent(new Event('visibilitychange', {bubbles: true}))")


def nothing(viewer: Viewer) -> None:
    """Another name is noticed with the first answer."""


@pytest.mark.parametrize(
    ("fixture", "before"),
    [("same_name", was_away), ("same_name", was_in_the_background), ("mgm_server", nothing)],
)
def test_another_model_behind_an_open_page_is_told_and_drawn_anew(
    browser: Browser,
    tiny_server: Server,
    request: pytest.FixtureRequest,
    fixture: str,
    before: Callable[[Viewer], None],
) -> None:
    """Under its own name, and under that of the one before: only its weights tell it from that."""
    other: Server = request.getfixturevalue(fixture)
    with other.client() as client:
        about = client.get("/model").json()
    name, layers, heads = about["name"], about["layers"], about["heads"]
    viewer = Viewer(browser, tiny_server.url, kind="ids", ids="5,7,11", layer=2).settled()
    # nothing is under way that would find the other model before the click does
    expect(viewer.page.locator(".grid-row.drawn")).to_have_count(3)
    viewer.page.fill("#field", "3, 4")
    before(viewer)
    behind(viewer, other)
    viewer.page.click("#go")
    expect(viewer.page.locator("#problem")).to_contain_text(f"the service has {name} now")
    viewer.shows_map(min(2, layers - 1), 0)
    assert viewer.tokens() == ["#3", "#4"]
    expect(viewer.page.locator("#facts")).to_contain_text(f"{name}: {layers} layers, {heads} heads")
    assert viewer.page.locator('.thumb[data-layer="0"]').count() == heads
    viewer.close()
