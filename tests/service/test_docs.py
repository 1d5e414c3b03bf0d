"""What the service says of itself: complete, offline, and true on whatever model is loaded."""

from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.service.calls import JSON, outputs
from tests.service.openapi_document import document
from tests.service.test_refusals import STATUSES_SEEN

LINKS = {"src", "href", "action", "data", "poster"}
MODELS = ("tiny", "mgm_client", "smollm2_client")


class Page(HTMLParser):
    """Remembers what a page loads or links to, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts = ""
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        self.links += [value for name, value in attrs if name in LINKS and value]

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts += data


@pytest.fixture(params=MODELS)
def client(request: pytest.FixtureRequest) -> httpx.Client:
    found: httpx.Client = request.getfixturevalue(request.param)
    return found


def test_everything_that_the_docs_load_comes_from_the_service_itself(tiny: httpx.Client) -> None:
    waiting, seen = ["/docs"], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        response = tiny.get(path)
        assert response.status_code == 200, path
        assert response.content, path
        if response.headers["content-type"].startswith("text/html"):
            page = Page(response.text)
            assert "://" not in page.scripts.replace(str(tiny.base_url), "")
            for link in page.links:
                assert not urlsplit(link).netloc, f"{path} loads {link}"
                target = urljoin(path, link.partition("#")[0])
                if target not in seen:
                    waiting.append(target)
    assert len(seen) >= 3  # a page, a script, a style


def test_the_docs_read_the_document_of_this_service(tiny: httpx.Client) -> None:
    assert "/openapi.json" in Page(tiny.get("/docs").text).scripts
    assert tiny.get("/docs/oauth2-redirect").status_code in (200, 404)


def test_the_root_leads_to_the_docs(tiny: httpx.Client) -> None:
    response = tiny.get("/")
    assert response.is_redirect
    assert urljoin(str(response.request.url), response.headers["location"]) == f"{tiny.base_url}/docs"
    assert tiny.get("/", follow_redirects=True).status_code == 200


def test_every_status_that_a_caller_can_see_is_documented(tiny: httpx.Client) -> None:
    responses = document(tiny)["paths"]["/forward"]["post"]["responses"]
    # 404 and 405 belong to no route; 500 is ours
    assert {str(status) for status in STATUSES_SEEN - {404, 405}} | {"200", "500", "503"} <= set(responses)
    for status, response in responses.items():
        if int(status) >= 400:
            assert set(response["content"]) == {"application/problem+json"}, status


def test_three_formats_are_documented_in_both_directions(tiny: httpx.Client) -> None:
    operation = document(tiny)["paths"]["/forward"]["post"]
    formats = {JSON, "application/x-safetensors", "application/x-npy"}
    assert set(operation["requestBody"]["content"]) == formats
    assert set(operation["responses"]["200"]["content"]) == formats


def test_every_reference_in_the_document_leads_somewhere(tiny: httpx.Client) -> None:
    whole = document(tiny)

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for one in value.values() for found in references(one)]
        return [found for one in value for found in references(one)] if isinstance(value, list) else []

    found = set(references(whole))
    assert found
    for reference in found:
        place: Any = whole
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_every_route_and_every_field_is_in_the_document(tiny: httpx.Client) -> None:
    whole = document(tiny)
    assert {"/forward", "/model", "/livez", "/readyz"} <= set(whole["paths"])
    schema = whole["paths"]["/forward"]["post"]["requestBody"]["content"][JSON]["schema"]
    fields = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    expected = "x inputs_embeds tokens text inputs start positions add_special_tokens outputs timeout_ms".split()
    assert set(expected) <= set(fields)


def test_model_tells_what_is_loaded(client: httpx.Client) -> None:
    about = client.get("/model").json()
    for key in ("name", "family", "causal", "dtype", "device", "weights_sha256", "limits", "points"):
        assert key in about
    assert len(about["weights_sha256"]) == 64
    assert about["dtype"] == "float32"
    assert about["device"] == "cpu"
    for key in ("max_tokens", "max_inputs", "max_body_bytes", "max_answer_bytes", "max_json_bytes"):
        assert about["limits"][key] > 0


def test_model_tells_the_sizes(tiny: httpx.Client, smollm2_client: httpx.Client) -> None:
    keys = "layers d_model heads kv_heads d_k d_v d_ff vocab_size max_positions parameters".split()
    layer = 2 * 2 * 30 + 2 * 30 * (7 + 7 + 5) + 10 * 30 + 30 * 53 + 53 + 53 * 30 + 30
    parameters = 3 * layer + 101 * 30 + 61 * 30 + 2 * 30
    about = tiny.get("/model").json()
    assert [about[key] for key in keys] == [3, 30, 2, 2, 7, 5, 53, 101, 61, parameters]
    about = smollm2_client.get("/model").json()
    assert [about[key] for key in keys] == [30, 576, 9, 3, 64, 64, 1536, 49152, 8192, 134_515_008]


def test_every_point_that_model_lists_can_be_asked_for(tiny: httpx.Client) -> None:
    points = tiny.get("/model").json()["points"]
    names = list(points) if isinstance(points, dict) else [point["name"] for point in points]
    response = tiny.post("/forward", json={"tokens": [2, 3, 5], "outputs": names})
    assert list(outputs(response)) == names


def test_model_lists_every_point_of_the_contract(tiny: httpx.Client) -> None:
    points = set(tiny.get("/model").json()["points"])
    kinds = "resid_pre ln1 q k v attn_scores attn_probs z attn_out resid_mid ln2 mlp_out resid_post".split()
    assert {f"layers.{i}.{kind}" for i in range(3) for kind in kinds} | {"final_norm", "logits"} <= points
    assert "embeddings" in points


def test_the_manifest_says_what_is_normed_and_what_a_map_is(tiny: httpx.Client) -> None:
    points = tiny.get("/model").json()["points"]
    assert points["layers.1.ln1"]["normed"] is True
    assert points["layers.1.resid_post"]["normed"] is False
    about = points["layers.2.attn_probs"]
    assert about["axes"] == ["head", "query", "key"]
    assert about["causal"] is True
    assert about["scale"] == pytest.approx(7**-0.5)


@pytest.mark.parametrize("probe", ["/livez", "/readyz"])
def test_probes_say_yes(client: httpx.Client, probe: str) -> None:
    assert client.get(probe).status_code == 200
    assert client.head(probe).status_code in (200, 405)
