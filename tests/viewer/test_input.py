"""What goes into the page, in a real browser: the field and its two kinds, links of any kind, narrow windows."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.server import Server
from tests.viewer.browser import PATIENCE_MS, Viewer
from tests.viewer.conftest import KEY

TEXT = "The water of the river is cold"
OTHER = "Paris is large"
TWELVE = "one two three four five six seven eight nine ten eleven twelve"
NARROW = 390


def ids_of(client: httpx.Client, text: str) -> str:
    """The ids of a text, as the field writes them."""
    answer = client.post("/forward", json={"text": text, "outputs": [{"name": "embeddings", "rows": [0]}]})
    return ", ".join(map(str, answer.raise_for_status().json()["tokens"]["ids"]))


def choose(viewer: Viewer, kind: str) -> Locator:
    """Switch the kind of input; the field."""
    viewer.page.locator(".input .segmented").get_by_text(kind, exact=True).click()
    return viewer.page.locator("#field")


def test_token_ids_are_those_of_the_text_that_is_shown(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT).settled()
    expect(choose(viewer, "Token ids")).to_have_value(ids_of(smollm2_client, TEXT))
    expect(choose(viewer, "Text")).to_have_value(TEXT)
    viewer.type(OTHER)
    expect(choose(viewer, "Token ids")).to_have_value(ids_of(smollm2_client, OTHER))
    viewer.page.click("#go")
    expect(viewer.page).to_have_url(re.compile("kind=ids"))
    assert "".join(viewer.settled().tokens()) == OTHER.replace(" ", "·")
    viewer.close()


def test_what_is_typed_and_not_shown_yet_outlives_a_switch_of_the_kind(
    browser: Browser, smollm2_server: Server
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT).settled()
    viewer.page.fill("#field", OTHER)
    choose(viewer, "Token ids").fill("12, 13")
    expect(choose(viewer, "Text")).to_have_value(OTHER)
    expect(choose(viewer, "Token ids")).to_have_value("12, 13")
    viewer.page.click("#go")
    expect(viewer.page.locator(".chip")).to_have_count(2)
    expect(choose(viewer, "Text")).to_have_value(OTHER)
    viewer.settled().close()


@pytest.mark.parametrize(
    "wrong",
    [{"curve": "cube"}, {"kind": "foo"}, {"size": 0}, {"light": "all"}, {"theme": "red"}, {"tab": "x"}, {"head": -1}],
)
def test_a_value_that_a_link_names_wrongly_is_as_at_the_beginning_and_leaves_the_link(
    browser: Browser, tiny_server: Server, wrong: dict[str, str | int]
) -> None:
    viewer = Viewer(browser, tiny_server.url, ids="5,7,11,13", **wrong).shows_map(0, 0)
    (name,) = wrong
    assert f"{name}={wrong[name]}" not in viewer.page.url
    assert viewer.page.locator("#problem").is_hidden()
    assert viewer.page.input_value("#field") == "5,7,11,13"
    viewer.page.evaluate(f"location.hash += '&{name}={wrong[name]}'")
    expect(viewer.page).not_to_have_url(re.compile(f"{name}={wrong[name]}"))
    viewer.close()


def test_a_view_shows_its_own_beginning_where_a_link_names_its_values_wrongly(
    browser: Browser, tiny_server: Server
) -> None:
    wrong = {"stream.mode": "sums", "stream.colour": "pink"}
    viewer = Viewer(browser, tiny_server.url, tab="stream", **wrong).settled()
    assert viewer.page.locator(".panel-stream input[value=norms]").is_checked()
    assert "stream." not in viewer.page.url
    viewer.close()


def test_a_text_for_a_model_without_a_tokenizer_is_told_so(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url, text="hello there")
    problem = viewer.page.locator("#problem")
    expect(problem).to_contain_text("This model takes no text")
    expect(problem).to_contain_text("hello there")
    viewer.page.reload()
    expect(problem).to_contain_text("hello there")
    viewer.type("7")
    assert problem.is_hidden()
    expect(viewer.page.locator("#status")).to_contain_text(re.compile(r"^1 token;"))
    viewer.close()


def test_a_link_with_ids_alone_shows_them(browser: Browser, smollm2_server: Server) -> None:
    viewer = Viewer(browser, smollm2_server.url, ids="504 2971").settled()
    assert viewer.page.input_value("#field") == "504 2971"
    assert len(viewer.tokens()) == 2
    viewer.close()


def test_a_link_without_an_input_shows_the_example_in_an_open_page_too(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url, kind="ids", ids="5,7").settled()
    viewer.page.evaluate("location.hash = 'layer=1'")
    viewer.shows_map(1, 0)
    assert len(viewer.tokens()) == 12
    viewer.close()


def test_a_text_that_was_emptied_stays_empty_over_a_reload(browser: Browser, smollm2_server: Server) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT).settled()
    viewer.page.fill("#field", "")
    viewer.page.click("#go")
    problem = viewer.page.locator("#problem")
    expect(problem).to_be_visible()
    viewer.page.reload()
    expect(problem).to_be_visible(timeout=PATIENCE_MS)
    assert viewer.page.input_value("#field") == ""
    viewer.close(refused=2)


def test_while_a_key_is_asked_for_the_page_says_that_it_waits_for_it(browser: Browser, keyed: Server) -> None:
    viewer = Viewer(browser, keyed.url)
    status = viewer.page.locator("#status")
    expect(status).to_have_text("Waiting for an API key.")
    viewer.page.fill("#key-field", KEY)
    viewer.page.press("#key-field", "Enter")
    viewer.settled()
    expect(status).to_contain_text("tokens;")
    viewer.close(refused=1)


def test_the_cursor_of_the_map_begins_in_the_row_of_the_picked_token(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url, token=4).settled()
    viewer.page.locator(".map").press("ArrowRight")
    viewer.page.locator('#readout output[data-query="4"][data-key="1"]').wait_for()
    viewer.close()


def test_a_layer_without_a_mask_is_not_said_to_have_one(
    browser: Browser, minilm_server: Server, smollm2_server: Server
) -> None:
    for server, formula in (
        (minilm_server, "softmax(QK^T / sqrt(d_k))"),
        (smollm2_server, "softmax(mask(QK^T / sqrt(d_k)))"),
    ):
        viewer = Viewer(browser, server.url, text=TEXT, tab="layer").settled()
        expect(viewer.page.locator(".layer-right h2")).to_contain_text(formula)
        viewer.close()


def test_bars_tell_tokens_of_one_name_apart(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url, ids="5,7,5", kind="ids", tab="token", token=2).settled()
    labels = viewer.page.locator('[data-side="from"][data-head="0"] [data-pick] text:first-of-type').all_text_contents()
    assert sorted(labels) == ["#7", "0 #5", "2 #5"]
    viewer.close()


def test_the_saved_figure_of_all_heads_names_each_head(browser: Browser, tiny_server: Server, tmp_path: Path) -> None:
    viewer = Viewer(browser, tiny_server.url).settled()
    expect(viewer.page.locator(".grid-row.drawn")).to_have_count(3, timeout=PATIENCE_MS)
    with viewer.page.expect_download() as download:
        viewer.page.click("#save-svg")
    download.value.save_as(tmp_path / "heads.svg")
    root = ElementTree.parse(tmp_path / "heads.svg").getroot()
    texts = [(float(node.get("y") or 0), node.text) for node in root if node.tag.endswith("text")]
    lines = {y: [text for at, text in texts if at == y] for y, _ in texts}
    assert ["0", "1"] in lines.values(), "its two heads, above the grid"
    viewer.close()


def test_the_stream_can_be_read_in_a_narrow_window(browser: Browser, smollm2_server: Server) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TWELVE, tab="stream")
    viewer.page.set_viewport_size({"width": NARROW, "height": 844})
    viewer.settled()
    legend = viewer.page.locator(".panel-stream .legend svg")
    for mode, title in (("Norms", "norm, logarithmic"), ("Predictions", "rank of the last layer's first")):
        viewer.page.get_by_text(mode, exact=True).click()
        expect(legend.get_by_text(title)).to_be_visible(timeout=PATIENCE_MS)
        viewer.settled()
        assert viewer.page.evaluate("document.documentElement.scrollWidth") <= NARROW
        box = legend.get_by_text(title).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= NARROW
        if mode == "Norms":
            numbers = viewer.page.locator(".panel-stream .sheet rect[data-token] + text").all_text_contents()
            assert len(numbers) > 12 * 25
            assert [one for one in numbers if not re.fullmatch(r"[\d.]+k?", one)] == []
        narrowest = viewer.page.locator(".panel-stream .sheet rect[data-token]").first.bounding_box()
        assert narrowest is not None
        assert narrowest["width"] >= 24, "a cell is not made too small to read"
    table = viewer.page.get_by_role("application", name="Layers and tokens")
    table.focus()
    for _ in range(3):
        viewer.page.keyboard.press("Shift+ArrowRight")
        viewer.page.keyboard.press("Shift+ArrowDown")
    expect(table.locator("[data-marks] rect")).to_be_in_viewport(ratio=0.9)
    viewer.close()
