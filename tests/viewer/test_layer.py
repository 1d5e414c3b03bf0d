"""The view of a layer in a real browser: the diagram fits the family, and each box opens the API's own numbers."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, expect
from transformers import GPTNeoXConfig

from tests.model.families import saved
from tests.server import Server, serving
from tests.viewer.browser import PATIENCE_MS, Viewer, tensors

TEXT = "The water of the river is cold"
KINDS = "resid_pre ln1 q k v attn_scores attn_probs z attn_out resid_mid ln2 mlp_out resid_post".split()
MAPS, PER_HEAD = ("attn_scores", "attn_probs"), ("q", "k", "v", "z", "attn_scores", "attn_probs")
ROWS = 32  # at a time


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose attention and feed-forward network stand side by side."""
    directory = tmp_path_factory.mktemp("viewer") / "neox"
    sizes = {"hidden_size": 66, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 70}
    saved(directory, GPTNeoXConfig(vocab_size=101, max_position_embeddings=64, rotary_pct=0.3, **sizes))
    with serving(directory, "--threads", "1") as server:
        yield server


def opened(viewer: Viewer, kind: str, layer: int) -> Viewer:
    """The view with the numbers of a point."""
    viewer.page.click(f'.layer-diagram [data-kind="{kind}"]')
    svg = viewer.page.locator(".panel-layer .sheet svg")
    expect(svg).to_have_attribute("aria-label", f"layers.{layer}.{kind}", timeout=PATIENCE_MS)
    return viewer.settled()


def told_at(viewer: Viewer, row: int, column: int, shape: tuple[int, int]) -> str:
    """Point at a cell of the sheet, whose rows begin at 0; what the page tells of it."""
    svg, image = viewer.page.locator(".panel-layer .sheet svg"), viewer.page.locator(".panel-layer .sheet svg > image")
    box = svg.bounding_box()
    assert box is not None
    scale = box["width"] / float(svg.get_attribute("width") or 0)
    left, top, width, height = (float(image.get_attribute(name) or 0) for name in ("x", "y", "width", "height"))
    at = {"x": left + width * (column + 0.5) / shape[1], "y": top + height * (row + 0.5) / shape[0]}
    svg.hover(position={name: scale * value for name, value in at.items()})
    told = viewer.page.locator(f'#layer-readout output[data-row="{row}"]')
    found = int(told.get_attribute("data-column") or -1)
    assert abs(found - column) <= shape[1] / width * scale + 1
    return f"{found} {told.text_content()}"


def close_to(told: str, value: float, row: np.ndarray[Any, Any]) -> bool:
    """Equal within what company may change: 2e-5 of the row's largest magnitude."""
    finite = row[np.isfinite(row)]
    return abs(float(told) - value) <= 2e-5 * float(np.abs(finite).max())


def test_each_box_opens_the_numbers_of_its_point(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    layer, head = 4, 5
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, tab="layer", layer=layer, head=head).settled()
    points = tensors(smollm2_client, text=TEXT, outputs=[f"layers.{layer}.{kind}" for kind in KINDS])
    for kind in KINDS:
        opened(viewer, kind, layer)
        of_api = points[f"layers.{layer}.{kind}"]
        whole = viewer.page.locator(".layer-right .note").first.inner_text()
        assert " × ".join(map(str, of_api.shape)) in whole
        if kind in PER_HEAD:
            of_api = of_api[head // 3 if kind in ("k", "v") else head]  # 9 query heads share 3 of keys and values
        for row, column in ((0, 0), (2, 1), (len(of_api) - 1, 3)):
            found, told = told_at(viewer, row, column, of_api.shape).split(" ", 1)
            assert close_to(told, of_api[row, int(found)], of_api[row]), f"{kind}: {told}"
    viewer.close()


def test_masked_scores_are_told_as_masked_and_not_as_numbers(browser: Browser, smollm2_server: Server) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, tab="layer", **{"layer.point": "attn_scores"}).settled()
    assert told_at(viewer, 1, 4, (7, 7)) == "4 masked"
    assert "masked" in viewer.page.locator(".panel-layer .legend").inner_text()
    viewer.close()


def test_a_box_for_each_point_of_each_family_in_the_order_of_its_formulas(
    browser: Browser, tiny_server: Server, minilm_server: Server, side_by_side: Server
) -> None:
    downwards = {
        tiny_server: [
            "resid_pre",
            "ln1",
            "q",
            "attn_scores",
            "attn_probs",
            "z",
            "attn_out",
            "resid_mid",
            "ln2",
            "mlp_out",
        ],
        minilm_server: ["resid_pre", "q", "attn_out", "resid_mid", "ln1", "mlp_out", "ln2"],
        side_by_side: ["resid_pre", "ln1", "q", "attn_out", "ln2", "mlp_out"],
    }
    for server, order in downwards.items():
        with server.client() as client:
            about = client.get("/model").json()
        viewer = Viewer(browser, server.url, tab="layer").settled()
        boxes = viewer.page.locator(".layer-diagram [data-kind]")
        places = {
            box.get_attribute("data-kind") or "": float(box.locator("rect").last.get_attribute("y") or 0)
            for box in boxes.all()
        }
        points = {name for name in about["points"] if name.startswith("layers.0.")}
        assert {f"layers.0.{kind}" for kind in places} == points
        assert [*order, "resid_post"] == sorted([*order, "resid_post"], key=places.__getitem__)
        n, drawn = len(viewer.tokens()), viewer.page.locator(".layer-diagram").inner_text()
        for shape in ((n, about["d_model"]), (about["heads"], n, n), (about["heads"], n, about["d_v"])):
            assert " × ".join(map(str, shape)) in drawn
        viewer.close()


def test_the_diagram_and_the_numbers_are_reached_by_the_keyboard_alone(browser: Browser, tiny_server: Server) -> None:
    ids = ",".join(str(i % 101) for i in range(45))
    viewer = Viewer(
        browser, tiny_server.url, ids=ids, kind="ids", tab="layer", **{"layer.point": "resid_mid"}
    ).settled()
    viewer.page.locator('.layer-diagram [data-kind="resid_mid"]').focus()
    viewer.page.keyboard.press("ArrowDown")
    sheet = viewer.page.locator(".panel-layer .sheet svg")
    expect(sheet).to_have_attribute("aria-label", "layers.0.ln2", timeout=PATIENCE_MS)
    viewer.page.keyboard.press("ArrowRight")
    expect(sheet).to_have_attribute("aria-label", "layers.1.ln2", timeout=PATIENCE_MS)
    assert viewer.page.evaluate("document.activeElement.dataset.kind") == "ln2"
    viewer.settled()
    viewer.page.keyboard.press("Tab")
    for name in ("ArrowDown", "ArrowRight", "ArrowRight"):
        viewer.page.locator(".panel-layer .sheet").press(name)
    with tiny_server.client() as client:
        (of_api,) = tensors(client, tokens=[i % 101 for i in range(45)], outputs=["layers.1.ln2"]).values()
    told = viewer.page.locator('#layer-readout output[data-row="1"][data-column="2"]').text_content()
    assert close_to(told or "", of_api[1, 2], of_api[1])
    viewer.page.locator(".panel-layer .sheet").press("Enter")
    expect(viewer.page.locator('.chip[aria-selected="true"]')).to_have_attribute("data-at", "1")
    viewer.page.locator(".panel-layer .sheet").press("PageDown")
    expect(viewer.page.locator(".panel-layer .controls", has_text="rows 13 to 44 of 45")).to_be_visible()
    assert re.search(r"layer\.from=13\b", viewer.page.url)
    viewer.close()


def test_of_a_long_input_it_asks_for_the_rows_that_it_shows(browser: Browser, tiny_server: Server) -> None:
    ids = [i % 101 for i in range(61)]
    viewer = Viewer(browser, tiny_server.url, ids=",".join(map(str, ids)), kind="ids", tab="layer", token=50).settled()
    expect(viewer.page.locator(".panel-layer .controls", has_text="rows 29 to 60 of 61")).to_be_visible()
    opened(viewer, "resid_post", 0)
    asked = [output for call in viewer.calls() for output in call["outputs"] if output["name"].startswith("layers")]
    assert asked
    assert all(output["rows"]["stop"] - output["rows"]["start"] == ROWS for output in asked)
    with tiny_server.client() as client:
        (of_api,) = tensors(client, tokens=ids, outputs=["layers.0.resid_post"]).values()
    sheet = viewer.page.locator(".panel-layer .sheet")
    sheet.press("ArrowRight")
    told = viewer.page.locator('#layer-readout output[data-row="29"][data-column="1"]').text_content()
    assert close_to(told or "", of_api[29, 1], of_api[29])
    viewer.close()


def test_the_link_holds_the_point_and_the_rows(browser: Browser, tiny_server: Server) -> None:
    ids = ",".join(str(i) for i in range(60))
    link: dict[str, Any] = {"ids": ids, "kind": "ids", "tab": "layer", "layer": 2, "layer.point": "z", "layer.from": 20}
    viewer = Viewer(browser, tiny_server.url, head=1, **link).settled()
    expect(viewer.page.locator(".panel-layer .sheet svg")).to_have_attribute("aria-label", "layers.2.z")
    expect(viewer.page.locator(".panel-layer .controls", has_text="rows 20 to 51 of 60")).to_be_visible()
    assert viewer.page.locator('.layer-diagram [aria-pressed="true"]').get_attribute("data-kind") == "z"
    viewer.close()
