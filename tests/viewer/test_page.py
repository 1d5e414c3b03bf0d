"""The page around its views, in a real browser: links, files, refusals, keys, loading, hostile texts, prefixes."""

import re
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import httpx
import numpy as np
from playwright.sync_api import Browser, expect

from tests.server import Server
from tests.service.test_life import SLOW_LOADER, planted
from tests.viewer.browser import Viewer, maps, same
from tests.viewer.conftest import KEY
from tests.viewer.prefix import below_prefix

TEXT = "The water of the river is cold"
HOSTILE = "<img src=x onerror=window.hit=1><script>window.hit=2</script> <b>&amp;"


def test_a_picked_token_shows_where_each_head_looks_and_who_looks_at_it(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, layer=4).settled()
    viewer.page.click("#tab-token")
    viewer.page.click('.chip[data-at="3"]')
    expect(viewer.page.locator(".panel-token .readout")).to_contain_text("token 3")
    viewer.settled()
    of_api = maps(smollm2_client, 4, text=TEXT)
    for side, values in (("from", of_api[:, 3, :]), ("to", of_api[:, :, 3])):
        for head in range(9):
            bars = viewer.page.locator(f'[data-side="{side}"][data-head="{head}"] [data-pick]')
            shown = {int(bar.get_attribute("data-pick") or -1): bar.get_attribute("data-value") for bar in bars.all()}
            best = np.argsort(-values[head], kind="stable")[: len(shown)]
            assert set(shown) == set(best.tolist())
            assert len(shown) == min(5, int((values[head] > 0).sum()))
            assert all(same(value, values[head, at]) for at, value in shown.items())
    assert viewer.lit() == [0, 1, 2, 3]
    viewer.page.locator('[data-side="from"][data-head="0"] [data-pick="0"]').press("Enter")
    expect(viewer.page.locator(".panel-token .readout")).to_contain_text("token 0")
    viewer.close()


def test_a_link_reopened_shows_the_same_view(browser: Browser, smollm2_server: Server) -> None:
    first = Viewer(browser, smollm2_server.url).settled().type(TEXT)
    first.page.select_option('select[aria-label="Layer"] >> visible=true', "3")
    first.shows_map(3, 0)
    first.page.click('.thumb[data-layer="2"][data-head="5"]')
    first.shows_map(2, 5)
    first.page.click('.chip[data-at="4"]')
    first.page.get_by_text("linear", exact=True).click()
    first.page.click("#theme")
    value, link, tokens = first.point_at(3, 2), first.page.url, first.tokens()
    theme = first.page.evaluate("document.documentElement.dataset.theme")
    first.page.click("#tab-token")
    heading = first.settled().page.locator(".panel-token .readout").text_content()
    token_link = first.page.url
    first.close()

    again = Viewer(browser, link, path="").shows_map(2, 5)
    assert (again.point_at(3, 2), again.tokens()) == (value, tokens)
    assert again.page.input_value("#field") == TEXT
    assert again.page.locator('.chip[aria-selected="true"]').get_attribute("data-at") == "4"
    assert again.page.locator('input[value="linear"] >> visible=true').first.is_checked()
    assert again.page.evaluate("document.documentElement.dataset.theme") == theme
    assert again.page.url == link
    again.page.evaluate(f"location.hash = {token_link.partition('#')[2]!r}")
    expect(again.page.locator(".panel-token .readout")).to_have_text(heading or "")
    again.close()


def test_a_link_beyond_the_model_and_the_text_shows_the_nearest_that_there_is(
    browser: Browser, tiny_server: Server
) -> None:
    viewer = Viewer(
        browser, tiny_server.url, ids="5,7,11", kind="text", layer=99, head=99, token=99, row=99, tab="no such"
    )
    viewer.shows_map(2, 1)
    assert viewer.page.locator('.chip[aria-selected="true"]').get_attribute("data-at") == "2"
    viewer.close()


def test_the_view_can_be_saved_as_svg_and_png(browser: Browser, smollm2_server: Server, tmp_path: Path) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=f"{TEXT} {HOSTILE}", head=3).settled()
    viewer.page.wait_for_selector(".grid-row.drawn")
    for tab in ("heads", "token"):
        viewer.page.click(f"#tab-{tab}")
        viewer.settled()
        sizes = {}
        for kind in ("svg", "png"):
            with viewer.page.expect_download() as download:
                viewer.page.click(f"#save-{kind}")
            assert download.value.suggested_filename == f"headwater-smollm2-135m-instruct-{tab}-layer-0-head-3.{kind}"
            path = tmp_path / f"{tab}.{kind}"
            download.value.save_as(path)
            if kind == "svg":
                root = ElementTree.parse(path).getroot()
                sizes[kind] = (float(root.get("width") or 0), float(root.get("height") or 0))
                words = " ".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("text"))
                assert "·river" in words
                assert {node.tag.partition("}")[2] for node in root.iter()} <= {
                    "svg", "g", "rect", "text", "image", "line", "path", "title",
                }  # fmt: skip
                links = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
                assert links
                assert all(link.startswith("data:image/png;base64,") for link in links)
            else:
                head = path.read_bytes()[:24]
                assert head[:8] == b"\x89PNG\r\n\x1a\n"
                sizes[kind] = struct.unpack(">II", head[16:24])
        assert sizes["png"] == tuple(int(2 * side) for side in sizes["svg"])
    viewer.close()


def test_a_refusal_is_shown_as_the_service_words_it(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT).settled()
    viewer.page.get_by_text("Token ids").click()
    viewer.page.fill("#field", "12, 99999999")
    viewer.page.click("#go")
    refused = smollm2_client.post("/forward", json={"tokens": [12, 99999999]}).json()
    problem = viewer.page.locator("#problem")
    expect(problem).to_contain_text(refused["detail"])
    expect(problem).to_contain_text(refused["code"])
    assert refused["errors"][0]["pointer"] in problem.inner_text()
    viewer.page.fill("#field", "12 and more")
    viewer.page.click("#go")
    expect(problem).to_contain_text('"and" is not a token id')
    viewer.type("12, 13")
    assert problem.is_hidden()
    assert len(viewer.tokens()) == 2
    viewer.close(refused=1)


def test_a_model_without_a_tokenizer_takes_ids(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url).settled()
    assert viewer.page.locator('input[name="kind"][value="text"]').is_disabled()
    viewer.type("[3, 5, 8]")
    assert viewer.tokens() == ["#3", "#5", "#8"]
    with tiny_server.client() as client:
        assert same(viewer.point_at(2, 1), maps(client, 0, tokens=[3, 5, 8])[0, 2, 1])
    viewer.close()


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, keyed: Server) -> None:
    viewer = Viewer(browser, keyed.url)
    field = viewer.page.locator("#key-field")
    field.fill("not-the-right-key")
    field.press("Enter")
    expect(viewer.page.locator("#problem")).to_contain_text("the API key is not known here")
    field.fill(KEY)
    field.press("Enter")
    viewer.settled()
    assert viewer.page.locator("#key").is_hidden()
    assert viewer.page.locator("#problem").is_hidden()
    assert KEY not in viewer.page.url
    assert KEY not in viewer.page.content()
    kept = viewer.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert kept == '[{},{},""]'
    assert field.input_value() == ""
    assert all(KEY not in request.url for request in viewer.requests)
    viewer.page.reload()
    expect(field).to_be_visible()
    viewer.close(refused=3)


def test_while_the_model_loads_the_page_says_so_and_shows_it_afterwards(
    browser: Browser, tiny_directory: Path, tmp_path: Path
) -> None:
    with planted(tiny_directory, SLOW_LOADER, tmp_path, until="listening") as it:
        it.wait_for("load")
        viewer = Viewer(browser, it.server.url)
        status = viewer.page.locator("#status")
        expect(status).to_contain_text("loading the model: 120 of 272 tensors")
        expect(status).to_contain_text(re.compile(r"again in \d+ s"))
        it.let("load")
        viewer.settled()
        refused = sum("503" in line for line in viewer.console)
        assert refused >= 1
        viewer.close(refused=refused)


def test_a_token_that_looks_like_markup_stays_text(browser: Browser, smollm2_server: Server) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=HOSTILE).settled()
    assert "".join(viewer.tokens()).replace("·", " ") == HOSTILE
    viewer.point_at(3, 1)
    viewer.page.click("#tab-token")
    viewer.settled()
    assert viewer.page.locator("main img, main script, main b").count() == 0
    assert viewer.page.evaluate("window.hit") is None
    viewer.close()


def test_the_page_works_below_a_prefix_of_the_path(browser: Browser, tiny_server: Server) -> None:
    with below_prefix(tiny_server.url, "/some/where") as url:
        viewer = Viewer(browser, url, path="/some/where/").settled()
        assert len(viewer.tokens()) == 12
        viewer.page.get_by_role("link", name="API").click()
        expect(viewer.page).to_have_url(f"{url}/some/where/docs")
        assert {r.url.partition("/some/where/")[1] for r in viewer.requests[:8]} == {"/some/where/"}
        viewer.context.close()


def test_all_can_be_reached_and_named_without_a_pointer(browser: Browser, smollm2_server: Server) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT).settled()
    nameless = viewer.page.locator("button, select, input, textarea, [tabindex]").evaluate_all(
        "nodes => nodes.filter(node => !(node.ariaLabel || node.innerText?.trim() || node.closest('label') || "
        "document.querySelector(`label[for='${node.id}']`) || node.getAttribute('aria-labelledby')))"
        ".map(node => node.outerHTML)"
    )
    assert nameless == []
    reached = set()
    for _ in range(40):
        viewer.page.keyboard.press("Tab")
        reached.add(viewer.page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"theme", "field", "go", "tab-heads", "copy", "save-png", "save-svg", "chip", "thumb", "map"} <= reached
    viewer.close()
