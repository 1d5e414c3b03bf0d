"""The view of the residual stream in a real browser: its norms and predictions are those of the API's own numbers."""

import json
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from playwright.sync_api import Browser, expect
from safetensors.numpy import load, save

from tests.server import Server
from tests.viewer.browser import PATIENCE_MS, Viewer, tensors

TEXT = "The capital of France is"
PREDICTIONS = {"stream.mode": "predictions"}
Array = np.ndarray[Any, Any]


def states_of(client: httpx.Client, layers: int, **call: Any) -> list[Array]:
    """What enters the first layer, and what leaves each."""
    found = tensors(client, outputs=["layers.0.resid_pre", "layers.*.resid_post"], **call)
    return [found["layers.0.resid_pre"], *(found[f"layers.{i}.resid_post"] for i in range(layers))]


def lens(client: httpx.Client, layers: int, state: Array) -> Array:
    """All logits of a state, through the final norm and the unembedding alone."""
    body = save({"x": state}, {"request": json.dumps({"start": layers, "outputs": ["logits"]})})
    headers = {"Content-Type": "application/x-safetensors", "Accept": "application/x-safetensors"}
    return np.asarray(load(client.post("/forward", content=body, headers=headers).raise_for_status().content)["logits"])


def point(viewer: Viewer, line: int, token: int) -> None:
    viewer.page.locator(f'.panel-stream .sheet rect[data-line="{line}"][data-token="{token}"]').hover()
    viewer.page.locator(f'#stream-readout output[data-line="{line}"][data-token="{token}"]').first.wait_for()


def told(viewer: Viewer) -> list[tuple[int, float]]:
    """Ids and logits that stand above the table, largest first."""
    found = viewer.page.locator("#stream-readout output").all()
    return [(int(one.get_attribute("data-id") or -1), float(one.text_content() or "nan")) for one in found]


def test_the_norms_are_those_of_the_states_that_the_api_returns(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, tab="stream").settled()
    states = states_of(smollm2_client, 30, text=TEXT)
    for line in (0, 1, 12, 30):
        for token in (0, 4):
            point(viewer, line, token)
            shown = float(viewer.page.locator("#stream-readout output").text_content() or "nan")
            norm = np.linalg.norm(states[line][token].astype(np.float64))
            assert abs(shown - norm) <= 2e-5 * norm
    assert np.linalg.norm(states[12][0]) > 10_000, "of which float16 would have made infinity"
    viewer.close()


def test_each_layers_prediction_is_its_states_logits_and_the_last_ones_are_the_models(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, tab="stream", **PREDICTIONS).settled()
    states = states_of(smollm2_client, 30, text=TEXT)
    (of_model,) = tensors(smollm2_client, text=TEXT, outputs=["logits"]).values()
    for line, token in ((0, 2), (10, 4), (25, 4), (30, 1), (30, 4)):
        logits = of_model[token] if line == 30 else lens(smollm2_client, 30, states[line])[token]
        point(viewer, line, token)
        shown = told(viewer)
        assert [i for i, _ in shown] == np.argsort(-logits, kind="stable")[:5].tolist()
        assert all(abs(value - logits[i]) <= 0.005 + 2e-5 * np.abs(logits).max() for i, value in shown)
    assert "“·Paris”" in viewer.page.locator("#stream-readout").inner_text()
    cell = viewer.page.locator('.panel-stream .sheet rect[data-line="30"][data-token="4"] + text')
    assert cell.text_content() == "·Paris"
    viewer.close()


def test_the_picked_cell_has_exact_probabilities(
    browser: Browser, smollm2_server: Server, smollm2_client: httpx.Client
) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, tab="stream", **PREDICTIONS).settled()
    viewer.page.locator('.panel-stream .sheet rect[data-line="25"][data-token="4"]').click()
    expect(viewer.page.locator(".stream-side h2")).to_contain_text("After layer 24", timeout=PATIENCE_MS)
    viewer.settled()
    logits = lens(smollm2_client, 30, states_of(smollm2_client, 30, text=TEXT)[25])[4].astype(np.float64)
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    rows = viewer.page.locator(".lens tbody tr").all()
    assert [int(row.get_attribute("data-id") or -1) for row in rows] == np.argsort(-logits, kind="stable")[:5].tolist()
    for row in rows:
        shown = float(row.locator("[data-probability]").get_attribute("data-probability") or "nan")
        assert abs(shown - shares[int(row.get_attribute("data-id") or -1)]) <= 1e-3 * shown
    assert viewer.page.locator('.chip[aria-selected="true"]').get_attribute("data-at") == "4"
    viewer.close()


def test_the_tokens_beyond_the_table_are_a_page_further_and_states_that_are_there_are_not_asked_for_again(
    browser: Browser, tiny_server: Server
) -> None:
    ids = [i % 101 for i in range(60)]
    viewer = Viewer(browser, tiny_server.url, ids=",".join(map(str, ids)), kind="ids", tab="stream").settled()
    with tiny_server.client() as client:
        (of_model,) = tensors(client, tokens=ids, outputs=["logits"]).values()
    viewer.page.get_by_text("Predictions", exact=True).click()
    table = viewer.page.locator(".panel-stream .sheet")
    for first, token in ((12, 20), (24, 24), (36, 47), (48, 59)):
        viewer.settled()
        table.press("PageDown")
        expect(
            viewer.page.locator(".panel-stream .controls", has_text=f"tokens {first} to {first + 11}")
        ).to_be_visible()
        point(viewer.settled(), 3, token)
        assert [i for i, _ in told(viewer)] == np.argsort(-of_model[token], kind="stable")[:5].tolist()
    cell = viewer.page.locator('.panel-stream .sheet rect[data-line="3"][data-token="59"] + text').text_content()
    assert cell == f"#{told(viewer)[0][0]}", "without a tokenizer a token is its id"
    asked = [output for call in viewer.calls() for output in call["outputs"]]
    rows = [(one["rows"]["start"], one["rows"]["stop"]) for one in asked if one["name"] == "layers.*.resid_post"]
    assert rows == [(0, 48), (48, 60)]
    viewer.close()


def test_a_model_without_an_unembedding_has_norms_alone(browser: Browser, minilm_server: Server) -> None:
    viewer = Viewer(browser, minilm_server.url, text=TEXT, tab="stream", **PREDICTIONS).settled()
    assert viewer.page.get_by_text("Predictions", exact=True).count() == 0
    assert "no unembedding" in viewer.page.locator(".panel-stream .note").first.inner_text()
    point(viewer, 6, 2)
    with minilm_server.client() as client:
        state = states_of(client, 6, text=TEXT)[6][2]
    shown = float(viewer.page.locator("#stream-readout output").text_content() or "nan")
    assert abs(shown - np.linalg.norm(state)) < 1e-3
    viewer.close()


def test_the_table_is_reached_by_the_keyboard_alone(browser: Browser, tiny_server: Server) -> None:
    viewer = Viewer(browser, tiny_server.url, tab="stream").settled()
    table = viewer.page.locator(".panel-stream .sheet")
    for name in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        table.press(name)
    expect(viewer.page.locator('.chip[aria-selected="true"]')).to_have_attribute("data-at", "1")
    assert "layer=1" in viewer.page.url
    viewer.close()


def test_both_views_can_be_saved_as_svg_and_png(browser: Browser, smollm2_server: Server, tmp_path: Path) -> None:
    viewer = Viewer(browser, smollm2_server.url, text=TEXT, layer=2).settled()
    for tab, mode in (("layer", "norms"), ("stream", "norms"), ("stream", "predictions")):
        viewer.page.click(f"#tab-{tab}")
        if mode == "predictions":
            viewer.page.get_by_text("Predictions", exact=True).click()
            expect(viewer.page.locator(".lens")).to_be_visible(timeout=PATIENCE_MS)
        viewer.settled()
        sizes = {}
        for kind in ("svg", "png"):
            path = tmp_path / f"{tab}-{mode}.{kind}"
            with viewer.page.expect_download() as download:
                viewer.page.click(f"#save-{kind}")
            download.value.save_as(path)
            if kind == "png":
                sizes[kind] = struct.unpack(">II", path.read_bytes()[16:24])
                continue
            root = ElementTree.parse(path).getroot()
            sizes[kind] = (float(root.get("width") or 0), float(root.get("height") or 0))
            words = " ".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("text"))
            assert "·France" in words
            assert all(node.get("class") is None and node.get("style") is None for node in root.iter())
        assert all(abs(wide - 2 * narrow) <= 2 for wide, narrow in zip(sizes["png"], sizes["svg"], strict=True))
    viewer.close()
