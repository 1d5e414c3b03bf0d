"""Families beside GPT-2, Llama and BERT: every point against transformers, on random configs with random parameters."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    GPTNeoConfig,
    GPTNeoXConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from model.checkpoint.initialise import initialise
from model.checkpoint.load import LoadedModel, load_model
from model.errors import CheckpointError
from model.keep import names_as_made
from model.points import UnknownPoint, expand, points_of
from model.run import run
from model.selection import Wanted, result_names
from model.sequence import Sequence
from service.app import create_app
from service.settings import Settings
from tests.model.families import check, company_errors, errors, ours, reference, row_error, saved

L, V, POSITIONS = 3, 41, 43
IDS = [40, 0, 11, 7, 7, 23, 2, 31, 5, 9, 3]
LONG = np.random.default_rng(17).integers(0, V, 601).tolist()  # several blocks of rows, and a rest
WEIGHTS = "model.safetensors"
_COMMON = {"vocab_size": V, "max_position_embeddings": POSITIONS, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {"num_hidden_layers": L, "hidden_size": 30, "num_attention_heads": 6, "intermediate_size": 37}
GLOBAL_LOCAL = [[["global", "local"], 1], [["local"], 1]]


def mistral(**keys: Any) -> MistralConfig:
    return MistralConfig(**_COMMON | _LLAMA | {"num_key_value_heads": 2, "head_dim": 10} | keys)


def qwen2(**keys: Any) -> Qwen2Config:
    return Qwen2Config(**_COMMON | _LLAMA | {"num_attention_heads": 3, "num_key_value_heads": 1} | keys)


def gpt_neox(**keys: Any) -> GPTNeoXConfig:
    return GPTNeoXConfig(**_COMMON | _LLAMA | {"hidden_size": 66, "num_attention_heads": 3, "rotary_pct": 0.3} | keys)


def opt(**keys: Any) -> OPTConfig:
    sizes = {"num_hidden_layers": L, "hidden_size": 33, "num_attention_heads": 3, "ffn_dim": 37}
    return OPTConfig(**_COMMON | sizes | keys)


def gpt_neo(**keys: Any) -> GPTNeoConfig:
    sizes = {"num_layers": L, "hidden_size": 33, "num_heads": 3, "attention_types": GLOBAL_LOCAL, "window_size": 4}
    return GPTNeoConfig(**_COMMON | sizes | keys)


def rotary(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **parameters}}


CONFIGS: dict[str, PreTrainedConfig] = {
    "mistral that sees 4 keys": mistral(sliding_window=4),
    "mistral that sees its own key alone": mistral(sliding_window=1),
    "mistral that sees all but one key": mistral(sliding_window=len(IDS) - 1),
    "mistral whose window is the sequence": mistral(sliding_window=len(IDS)),
    "mistral without a window": mistral(sliding_window=None),
    "mistral with a kv head for each": mistral(num_key_value_heads=6, sliding_window=3),
    "mistral that ties": mistral(tie_word_embeddings=True, **rotary(rope_theta=13.0)),
    "qwen2": qwen2(),
    "qwen2 with windows from layer 1 on": qwen2(use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen2 with windows everywhere": qwen2(use_sliding_window=True, sliding_window=2, max_window_layers=0),
    "qwen2 with windows that are not used": qwen2(sliding_window=2, max_window_layers=0),
    "qwen2 with a window in the middle": qwen2(
        use_sliding_window=True,
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "qwen2 that ties": qwen2(tie_word_embeddings=True, num_key_value_heads=3),
    "gpt_neox": gpt_neox(),
    "gpt_neox, one after the other": gpt_neox(use_parallel_residual=False),
    "gpt_neox that turns all of a head": gpt_neox(rotary_pct=1.0),
    "gpt_neox that turns one pair": gpt_neox(rotary_pct=0.1, rotary_emb_base=13),
    "gpt_neox without attention biases": gpt_neox(attention_bias=False),
    "gpt_neox that ties": gpt_neox(tie_word_embeddings=True),
    "gpt_neox with another activation": gpt_neox(hidden_act="gelu_fast", layer_norm_eps=0.1),
    "opt": opt(),
    "opt without biases": opt(enable_bias=False),
    "opt without a final norm": opt(_remove_final_layer_norm=True),
    "opt that ties nothing": opt(tie_word_embeddings=False, activation_function="gelu"),
    "gpt_neo": gpt_neo(),
    "gpt_neo, global alone": gpt_neo(attention_types=[[["global"], L]]),
    "gpt_neo, local alone": gpt_neo(attention_types=[[["local"], L]], window_size=1),
    "gpt_neo with a narrow FFN": gpt_neo(intermediate_size=13, activation_function="relu", tie_word_embeddings=False),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Matrices as small as these gain nothing from several, and lose where other work runs beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    """A model of each family as it is."""
    models: dict[str, LoadedModel] = {}
    for name in ("mistral that sees 4 keys", "qwen2", "gpt_neox", "opt", "gpt_neo"):
        directory = tmp_path_factory.mktemp("family")
        saved(directory, CONFIGS[name])
        models[name.partition(" ")[0]] = load_model(directory, name="m")
    return models


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_family_gives_the_points_of_transformers(tmp_path: Path, config: PreTrainedConfig) -> None:
    loaded = check(tmp_path, saved(tmp_path, config), IDS)
    assert loaded.config.unembedding
    assert loaded.config.family == config.model_type


@pytest.mark.parametrize(
    "config",
    [
        mistral(sliding_window=5, max_position_embeddings=1021, num_hidden_layers=2),
        mistral(sliding_window=307, max_position_embeddings=1021, num_hidden_layers=2),
        gpt_neo(window_size=257, max_position_embeddings=1021, num_layers=2, attention_types=[[["local"], 2]]),
    ],
    ids=["mistral, 5", "mistral, 307", "gpt_neo, 257"],
)
def test_a_window_is_exact_over_many_blocks_of_rows(tmp_path: Path, config: PreTrainedConfig) -> None:
    check(tmp_path, saved(tmp_path, config), LONG)


@pytest.mark.parametrize("make", [mistral, gpt_neox, opt, gpt_neo], ids=lambda make: make.__name__)
def test_positions_of_a_callers_own_are_those_of_transformers(tmp_path: Path, make: Any) -> None:
    model = saved(tmp_path, make())
    positions = [5, 0, 3, 42, 3, 10, 7, 8, 9, 1, 2]
    # without a mask of its own, transformers takes a jump in the positions for the start of another sequence
    mask = torch.ones(1, len(IDS), dtype=torch.int64)
    with torch.inference_mode():
        expected = model(
            torch.tensor([IDS]), position_ids=torch.tensor([positions]), attention_mask=mask, use_cache=False
        )
    found = ours(load_model(tmp_path, name="m"), IDS, ["logits"], positions=positions)
    assert row_error(found["logits"], expected.logits[0].numpy()) <= 5e-5


@pytest.mark.parametrize(
    "config", [mistral(), qwen2(), gpt_neox(), opt(tie_word_embeddings=False), gpt_neo(tie_word_embeddings=False)],
    ids=["mistral", "qwen2", "gpt_neox", "opt", "gpt_neo"],
)  # fmt: skip
def test_a_model_without_a_head_has_no_logits_and_no_prefix(tmp_path: Path, config: PreTrainedConfig) -> None:
    model = saved(tmp_path, config, AutoModel)
    assert not check(tmp_path, model, IDS).config.unembedding


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gpt_neox", "opt", "gpt_neo"])
def test_a_family_gives_a_sequence_the_same_alone_and_in_company(loaded: dict[str, LoadedModel], family: str) -> None:
    assert company_errors(loaded[family], [LONG[n : 2 * n] for n in (1, 2, 11, 43)]) == []


@pytest.mark.parametrize("family", ["mistral", "gpt_neox"])
def test_results_come_in_the_order_that_was_announced(loaded: dict[str, LoadedModel], family: str) -> None:
    config = loaded[family].config
    wanted = tuple(Wanted(point.name, point) for point in reversed(list(points_of(config))))
    order: list[str] = []

    class Notes:
        takes_parts = False

        def put(self, wanted: Wanted, tensors: tuple[torch.Tensor, ...]) -> None:
            order.extend(result_names(wanted))

        def fail(self, error: Exception) -> None:
            raise error

    run(loaded[family].stack, [Sequence("tokens", np.array(IDS), 0, config.n_layers, wanted)], [Notes()])
    assert order == names_as_made([wanted], config)


def test_a_window_never_makes_the_kernel_see_n_by_n(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, mistral(sliding_window=7, max_position_embeddings=5003))
    loaded = load_model(tmp_path, name="m")
    seen: list[tuple[int, int]] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(q: torch.Tensor, k: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        seen.append((q.shape[-2], k.shape[-2]))
        return kernel(q, k, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    ours(loaded, np.arange(5003) % V, ["layers.0.resid_post"])
    assert sum(rows for rows, _ in seen) == 5003
    assert max(rows * keys for rows, keys in seen) < 5003 * 5003 / 100


def test_top_k_of_a_windowed_map_has_no_key_outside_the_window(loaded: dict[str, LoadedModel]) -> None:
    config = loaded["mistral"].config
    points = [point for kind in ("attn_probs", "attn_scores") for _, point in expand(f"layers.0.{kind}", config, 0)]
    found: dict[str, list[torch.Tensor]] = {}

    class Keeps:
        takes_parts = False

        def put(self, wanted: Wanted, tensors: tuple[torch.Tensor, ...]) -> None:
            found[wanted.name] = list(tensors)

        def fail(self, error: Exception) -> None:
            raise error

    wanted = tuple(Wanted(point.kind, point, top_k=6) for point in points)
    run(loaded["mistral"].stack, [Sequence("tokens", np.array(IDS), 0, 1, wanted)], [Keeps()])
    for kind, unseen in (("attn_probs", 0.0), ("attn_scores", -torch.inf)):
        values, indices = found[kind]
        for row in range(len(IDS)):
            visible = list(range(max(0, row - 3), row + 1))
            for head in range(config.n_heads):
                assert sorted(indices[head, row, : len(visible)].tolist()) == visible
            assert (indices[:, row, len(visible) :] == -1).all()
            assert (values[:, row, len(visible) :] == unseen).all()


# --- points of a parallel layer, and of a model without a mask, as a caller sees them


def ask(loaded: LoadedModel, *calls: dict[str, Any]) -> list[httpx.Response]:
    """GET /model, and the answers to calls of POST /forward."""
    app = create_app(Settings(), lambda _: loaded)

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://headwater") as http,
        ):
            await app.state.loading
            return [await http.get("/model"), *[await http.post("/forward", json=call) for call in calls]]

    return asyncio.run(answers())


def test_a_parallel_layer_has_no_resid_mid(loaded: dict[str, LoadedModel]) -> None:
    asked = ("layers.1.resid_mid", "layers.*.resid_mid")
    about, *answers = ask(loaded["gpt_neox"], *({"tokens": IDS, "outputs": [name]} for name in asked))
    points = about.json()["points"]
    assert {name.rpartition(".")[2] for name in points} == {
        "embeddings", "resid_pre", "ln1", "q", "k", "v", "attn_scores", "attn_probs", "z", "attn_out", "ln2", "mlp_out",
        "resid_post", "final_norm", "logits",
    }  # fmt: skip
    assert points["layers.0.resid_post"]["textbook"] == "H = X + T2 + T5"
    for name, answer in zip(asked, answers, strict=True):
        assert answer.status_code == 422
        assert answer.json()["code"] == "unknown_point"
        assert f"'{name}' is not a point of this model; the nearest is 'layers." in answer.json()["detail"]


def test_the_manifest_of_a_map_says_its_window(loaded: dict[str, LoadedModel]) -> None:
    (about,) = ask(loaded["gpt_neo"])
    windows = [about.json()["points"][f"layers.{i}.attn_probs"]["window"] for i in range(L)]
    assert windows == [None, 4, 4]
    assert about.json()["points"]["layers.0.attn_probs"]["scale"] == 1.0


def test_a_textbook_model_without_a_mask_sees_every_row_from_config_to_answer(tmp_path: Path) -> None:
    initialise(tmp_path / "m", seed=7, n_layers=1, d_model=15, n_heads=3, causal=False, vocab_size=V, max_positions=13)
    tensors = {name: x.double().numpy() for name, x in load_file(tmp_path / "m" / WEIGHTS).items()}
    about, answer = ask(
        load_model(tmp_path / "m", name="m"),
        {"tokens": IDS, "outputs": ["layers.0.ln1", "layers.0.attn_scores", "layers.0.attn_probs"]},
    )
    assert about.json()["causal"] is False
    assert about.json()["points"]["layers.0.attn_probs"]["causal"] is False
    ln1, scores, probs = (np.array(one["data"]) for one in answer.json()["outputs"].values())
    expected = (ln1 @ tensors["layers.0.W_Q"]) @ (ln1 @ tensors["layers.0.W_K"]).transpose(0, 2, 1) / 5**0.5
    assert row_error(scores, expected) <= 5e-5
    e = np.exp(expected - expected.max(axis=-1, keepdims=True))
    assert row_error(probs, e / e.sum(axis=-1, keepdims=True)) <= 5e-5


def test_a_bidirectional_row_depends_on_rows_after_it(tmp_path: Path) -> None:
    for causal in (False, True):
        directory = tmp_path / str(causal)
        initialise(directory, seed=7, n_layers=2, d_model=15, n_heads=3, causal=causal, vocab_size=V, max_positions=13)
        model = load_model(directory, name="m")
        one, other = (ours(model, [*IDS[:5], last], ["layers.1.resid_post"]) for last in (3, 4))
        same = np.array_equal(one["layers.1.resid_post"][:5], other["layers.1.resid_post"][:5])
        assert same is causal


# --- files


def change(directory: Path, remove: str = "", **keys: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop(remove, None)
    path.write_text(json.dumps(config | keys))


def rewrite(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def test_mistral_has_a_window_of_4096_where_the_config_says_nothing(tmp_path: Path) -> None:
    saved(tmp_path, mistral(sliding_window=None))
    assert load_model(tmp_path, name="m").config.windows == (None,) * L
    change(tmp_path, remove="sliding_window")
    assert load_model(tmp_path, name="m").config.windows == (4096,) * L


def test_gpt_neox_keys_of_older_files_mean_what_they_meant(tmp_path: Path) -> None:
    model = saved(tmp_path, gpt_neox(rotary_pct=0.2, rotary_emb_base=13))
    expected = reference(model, IDS)
    for keys in (
        {"rotary_pct": 0.2, "rotary_emb_base": 13},
        {"rotary_pct": 0.2, "rotary_emb_base": 13, "rope_theta": 13, "partial_rotary_factor": 0.2},
    ):
        change(tmp_path, remove="rope_parameters", **keys)
        assert errors(ours(load_model(tmp_path, name="m"), IDS, list(expected)), expected) == {}
    change(tmp_path, rope_theta=14)
    with pytest.raises(CheckpointError, match="rope_theta is 14, and elsewhere in the file 13"):
        load_model(tmp_path, name="m")


@pytest.mark.parametrize("name", ["embed_out.weight", "lm_head.weight"])
def test_gpt_neox_may_call_its_unembedding_either_way(tmp_path: Path, name: str) -> None:
    model = saved(tmp_path, gpt_neox())
    tensors = load_file(tmp_path / WEIGHTS)
    (head,) = {"embed_out.weight", "lm_head.weight"} & set(tensors)
    rewrite(tmp_path, {name if old == head else old: x for old, x in tensors.items()})
    check(tmp_path, model, IDS)


def test_buffers_of_old_gpt_neox_files_are_passed_over_or_checked(tmp_path: Path) -> None:
    model = saved(tmp_path, gpt_neox())
    tensors = load_file(tmp_path / WEIGHTS)
    frequencies = 10000 ** -(torch.arange(0, 6, 2) / 6)
    for i in range(L):
        attention = f"gpt_neox.layers.{i}.attention"
        tensors |= {
            f"{attention}.bias": torch.ones(1, 1, 5, 5, dtype=torch.bool),
            f"{attention}.masked_bias": torch.tensor(-1e9),
            f"{attention}.rotary_emb.inv_freq": frequencies.clone(),
        }
    rewrite(tmp_path, tensors)
    check(tmp_path, model, IDS)
    tensors["gpt_neox.layers.2.attention.rotary_emb.inv_freq"] = frequencies / 2
    rewrite(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.2\.attention\.rotary_emb\.inv_freq' differs"):
        load_model(tmp_path, name="m")


def test_buffers_of_old_gpt_neo_files_are_passed_over(tmp_path: Path) -> None:
    model = saved(tmp_path, gpt_neo())
    tensors = load_file(tmp_path / WEIGHTS)
    tensors |= {f"transformer.h.{i}.attn.attention.masked_bias": torch.tensor(-1e9) for i in range(L)}
    tensors |= {f"transformer.h.{i}.attn.attention.bias": torch.ones(1, 1, 5, 5) for i in range(L)}
    rewrite(tmp_path, tensors)
    check(tmp_path, model, IDS)


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        (opt(), {"do_layer_norm_before": False}, "do_layer_norm_before is False"),
        (opt(), {"word_embed_proj_dim": 17}, "word_embed_proj_dim is 17"),
        (opt(), {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False"),
        (gpt_neo(), {"attention_types": [[["global"], 2]]}, "attention_types is .* global or local for 3 layers"),
        (gpt_neo(), {"attention_types": [[["diagonal"], L]]}, "attention_types is .* global or local"),
        (gpt_neo(), {"attention_types": "local"}, "attention_types is 'local', and must be a list"),
        (gpt_neo(), {"attention_types": [[[["local"]], L]]}, "attention_types is .* global or local"),
        (gpt_neo(), {"attention_layers": ["global"] * L}, "attention_layers is"),
        (gpt_neox(), {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is"),
        (gpt_neox(), rotary(partial_rotary_factor=0.25), "5 numbers of a head of 22 cannot be turned in pairs"),
        (gpt_neox(), rotary(partial_rotary_factor=0.0), "must be above 0 and at most 1"),
        (qwen2(), {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        (qwen2(), {"layer_types": [["full_attention"]] * L}, "layer_types is"),
        (qwen2(), {"layer_types": ["sliding_attention"] * L}, "no sliding_window is in use"),
        (qwen2(), rotary(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
        (qwen2(), {"use_mrope": True}, "unknown key 'use_mrope'"),
        (mistral(), {"sliding_window": 0}, "sliding_window is 0"),
        (mistral(), {"layer_types": ["full_attention"] * L}, "unknown key 'layer_types'"),
    ],
)
def test_a_key_that_would_change_the_numbers_is_refused_by_name(
    tmp_path: Path, config: PreTrainedConfig, keys: dict[str, Any], message: str
) -> None:
    config.save_pretrained(tmp_path)
    change(tmp_path, **keys)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(tmp_path, name="m")
    assert "\n" not in str(caught.value)


def test_a_point_that_a_parallel_layer_lacks_is_unknown_by_name(loaded: dict[str, LoadedModel]) -> None:
    with pytest.raises(UnknownPoint, match=r"'layers\.2\.resid_mid' is not a point of this model; the nearest is"):
        expand("layers.2.resid_mid", loaded["gpt_neox"].config, 0)
    assert expand("layers.2.resid_mid", loaded["mistral"].config, 0)
