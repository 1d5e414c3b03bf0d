"""The view of heads in a real browser: what it shows are the API's own numbers, and it asks for no more."""

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser

from tests.server import Server
from tests.viewer.browser import Viewer, hold, maps, same, tensors

TEXT = "The water of the river is cold"
LONG = " ".join(f"word {i}" for i in range(140))


def test_a_text_that_is_typed_is_shown_with_its_tokens_and_all_heads(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url).settled().type(TEXT)
    strings = smollm2_client.post("/forward", json={"text": TEXT, "outputs": ["embeddings"]}).json()["tokens"][
        "strings"
    ]
    assert viewer.tokens() == [one.replace(" ", "·") for one in strings]
    assert viewer.page.locator(".thumb").count() == 30 * 9
    drawn = viewer.page.locator(".grid-row.drawn")
    drawn.first.wait_for()
    assert 3 <= drawn.count() < 30, "layers are asked for when they can be seen"
    viewer.close()


def test_the_values_under_the_pointer_are_those_of_the_api(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, layer=3, head=2).shows_map(3, 2)
    of_api = maps(smollm2_client, 3, text=TEXT)[2]
    n = len(of_api)
    for query in range(n):
        for key in range(0, query + 1, 2):
            assert same(viewer.point_at(query, key), of_api[query, key])
    viewer.close()


def test_keys_after_the_query_are_masked_in_a_causal_model_and_shown_in_one_that_looks_both_ways(
    browser: Browser, smollm2_server: Server, minilm_server: Server
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT).settled()
    assert viewer.point_at(1, 4) == "masked"
    assert "masked" in viewer.page.locator(".legend").inner_text()
    viewer.page.wait_for_selector(".grid-row.drawn")
    corner = "canvas => [...canvas.getContext('2d').getImageData(canvas.width - 1, 0, 1, 1).data]"
    small = viewer.page.locator(".thumb canvas").first
    assert small.evaluate(corner)[3] == 0, "transparent, which no value is"
    viewer.close()

    viewer = Viewer(browser, minilm_server.url, text=TEXT).settled()
    with minilm_server.client() as client:
        of_api = maps(client, 0, text=TEXT)[0]
    assert same(viewer.point_at(1, 4), of_api[1, 4])
    assert viewer.point_at(4, 1) != viewer.point_at(1, 4)
    viewer.page.wait_for_selector(".grid-row.drawn")
    assert viewer.page.locator(".thumb canvas").first.evaluate(corner)[3] == 255
    viewer.close()


def test_the_row_or_the_column_under_the_pointer_lights_up_in_the_text(
    browser: Browser, smollm2_server: Server
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, layer=1).settled()
    n = len(viewer.tokens())
    viewer.point_at(4, 1)
    assert viewer.lit() == [0, 1, 2, 3, 4], "the row: what token 4 looks at"
    assert viewer.page.locator(".chip.query").get_attribute("data-at") == "4"
    assert viewer.page.locator(".chip.key").get_attribute("data-at") == "1"
    viewer.page.get_by_text("column", exact=True).click()
    viewer.point_at(4, 1)
    assert viewer.lit() == list(range(1, n)), "the column: who looks at token 1"
    viewer.close()


def test_arrows_choose_head_layer_cell_and_token(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT).settled()
    viewer.page.locator(".thumb[aria-current]").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft"):
        viewer.page.keyboard.press(key)
    viewer.shows_map(2, 1)
    viewer.page.locator(".chip").first.focus()
    viewer.page.keyboard.press("ArrowRight")
    assert viewer.page.locator('.chip[aria-selected="true"]').get_attribute("data-at") == "1"
    assert viewer.page.evaluate("document.activeElement.dataset.at") == "1"
    viewer.page.keyboard.press("End")
    last = len(viewer.tokens()) - 1
    assert viewer.page.locator('.chip[aria-selected="true"]').get_attribute("data-at") == str(last)
    for _ in range(20):  # to the map, by tabs alone
        viewer.page.keyboard.press("Tab")
        if viewer.page.evaluate("document.activeElement.className") == "map":
            break
    viewer.page.keyboard.press("ArrowRight")
    told = viewer.page.locator(f'#readout output[data-query="{last}"][data-key="1"]').text_content()
    assert same(told, maps(smollm2_client, 2, text=TEXT)[1, last, 1])
    viewer.page.keyboard.press("Enter")
    assert viewer.page.locator('.chip[aria-selected="true"]').get_attribute("data-at") == str(last)
    viewer.close()


def test_of_a_long_text_a_block_is_fetched_and_can_be_moved(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=LONG, layer=2, head=7).shows_map(2, 7)
    n = len(viewer.tokens())
    assert n > 256
    block = maps(smollm2_client, 2, text=LONG)[7]
    assert same(viewer.point_at(40, 11), block[40, 11])
    viewer.page.locator(".map").focus()
    for _ in range(3):
        viewer.page.keyboard.press("Shift+ArrowDown")
        viewer.page.keyboard.press("Shift+ArrowRight")
    viewer.page.wait_for_selector('.map svg > image[data-row="96"][data-key="96"]')
    assert same(viewer.settled().point_at(150, 131), block[150, 131])
    assert viewer.point_at(131, 150) == "masked"
    inside = "chip => { const a = chip.getBoundingClientRect(), b = chip.parentNode.getBoundingClientRect();"
    inside += " return a.top >= b.top && a.bottom <= b.bottom; }"
    assert viewer.page.locator(".chip.query").evaluate(inside), "the line of tokens follows the pointer"
    assert "rows 96 to 159 and keys 96 to 159" in viewer.page.locator(".block").inner_text()

    widest = 48 * 8 + 64 * 64  # cells a head of a small map, or of a block
    for call in viewer.calls():
        for output in call["outputs"]:
            asked = output["name"]
            if asked.endswith("attn_probs"):
                rows, keys = output["rows"], output.get("keys")
                height = len(rows) if isinstance(rows, list) else rows["stop"] - rows["start"]
                width = output.get("top_k") or keys["stop"] - keys["start"]
                assert height * width <= widest, output
    viewer.close()


def test_a_sampled_small_map_holds_the_strongest_keys_of_its_rows(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=LONG, layer=2).settled()
    viewer.page.wait_for_selector('.grid-row.drawn[data-layer="2"]')
    n = len(viewer.tokens())
    rows = [round(i * (n - 1) / 47) for i in range(48)]
    entry = {"name": "layers.2.attn_probs", "as": "m", "rows": rows, "top_k": 8, "dtype": "float16"}
    found = tensors(smollm2_client, text=LONG, outputs=[entry])
    cells = np.zeros((9, 48, 48))
    for head, row, rank in np.ndindex(9, 48, 8):
        key = int(found["m.indices"][head, row, rank])
        if key >= 0:
            cells[head, row, key * 48 // n] += float(found["m.values"][head, row, rank])
    viewer.page.get_by_text("linear", exact=True).click()
    palette = np.array(viewer.page.evaluate(
        "import('/viewer/js/colour.js').then(({palette}) => [...palette('light').rgb])")).reshape(256, 3)  # fmt: skip
    pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    for head in (0, 5):
        canvas = viewer.page.locator(f'.thumb[data-layer="2"][data-head="{head}"] canvas')
        rgba = np.array(canvas.evaluate(pixels)).reshape(48, 48, 4)
        shown = rgba[..., 3] > 0
        assert shown[47].all()
        assert not shown[0, 1:].any()
        level = np.round(255 * np.minimum(cells[head], 1)).astype(int)
        off = np.abs(rgba[..., :3] - palette[level]).max(-1)[shown]
        assert off.max() <= 3, "the colour of the value, but for a rounding"
    assert f"48 of {n} query rows" in viewer.page.locator(".heads-grid .note").inner_text()
    viewer.close()


def test_a_long_text_takes_one_pass_for_the_large_map_and_the_small_ones_above_it(
    browser: Browser, smollm2_server: Server
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=LONG, layer=9, head=1).shows_map(9, 1)
    viewer.page.wait_for_selector('.grid-row.drawn[data-layer="9"]')
    passes = [[output["name"] for output in call["outputs"]] for call in viewer.calls()]
    assert "layers.9.attn_probs" in passes[1]
    assert any(name.endswith("-9.attn_probs") for name in passes[1]), passes
    told = len(passes)
    viewer.page.click('.thumb[data-layer="9"][data-head="6"]')
    viewer.shows_map(9, 6)
    assert len(viewer.calls()) <= told + 1, "the other heads are there already; layers below may come into sight"
    assert all("layers.9.attn_probs" not in str(call["outputs"]) for call in viewer.calls()[told:])
    viewer.close()


def test_what_is_not_wanted_any_more_is_given_up(browser: Browser, smollm2_server: Server) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, layer=29).settled()
    viewer.page.route("**/forward", hold)
    with viewer.page.expect_request("**/forward"):
        viewer.page.click("#tab-token")
    viewer.page.unroute_all()
    with viewer.page.expect_event("requestfailed", lambda request: request.url.endswith("/forward")):
        viewer.type("short")
    assert len(viewer.tokens()) < 4
    assert viewer.page.locator("#problem").is_hidden()
    viewer.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_equal_steps_of_value_are_equal_steps_of_lightness(browser: Browser, tiny_server: Server, theme: str) -> None:
    viewer = Viewer(browser, tiny_server.url, theme=theme).settled()
    code = f"import('/viewer/js/colour.js').then(({{palette}}) => [...palette('{theme}').rgb])"
    rgb = np.array(viewer.page.evaluate(code), float).reshape(256, 3) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lms = np.cbrt(linear @ np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                                     [0.2119034982, 0.6806995451, 0.1073969566],
                                     [0.0883024619, 0.2817188376, 0.6299787005]]).T)  # fmt: skip
    lightness = lms @ np.array([0.2104542553, 0.7936177850, -0.0040720468])
    steps = np.diff(lightness[::15])
    assert (np.sign(steps) == (1 if theme == "dark" else -1)).all()
    assert np.abs(steps).max() < 1.25 * np.abs(steps).mean()
    assert np.abs(steps).min() > 0.75 * np.abs(steps).mean()
    viewer.close()
