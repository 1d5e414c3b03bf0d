"""BERT: post-norm layers, every point against transformers, on MiniLM's weights and on random configs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, BertConfig
from transformers import BertForPreTraining as ForPreTraining

from model.checkpoint.load import LoadedModel, load_model
from model.checkpoint.packages import packaged_model
from model.errors import CheckpointError
from model.keep import names_as_made
from model.points import points_of
from model.run import run
from model.selection import Wanted, result_names
from model.sequence import Sequence
from model.tokenizer import encode, strings
from service.manifest import describe
from tests.model.families import check, company_errors, errors, ours, reference, row_error, saved

L, V, POSITIONS = 3, 41, 43
IDS = [40, 0, 11, 7, 7, 23, 2, 31, 5, 9, 3]
WEIGHTS = "model.safetensors"
TEXT = "The river begins here, unembellished."


def bert(**keys: Any) -> BertConfig:
    sizes = {"num_hidden_layers": L, "hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 37}
    return BertConfig(**sizes | {"vocab_size": V, "max_position_embeddings": POSITIONS, "type_vocab_size": 2} | keys)


@pytest.fixture(scope="module")
def minilm_directory() -> Path:
    return packaged_model("minilm", print)


@pytest.fixture(scope="module")
def minilm(minilm_directory: Path) -> LoadedModel:
    return load_model(minilm_directory, name="minilm")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = tmp_path_factory.mktemp("bert")
    saved(directory, bert(), AutoModelForMaskedLM)
    return load_model(directory, name="m")


def rewrite(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize("length", [1, 2, 7, 512])
def test_minilm_gives_the_points_of_transformers(minilm: LoadedModel, minilm_directory: Path, length: int) -> None:
    model = AutoModel.from_pretrained(minilm_directory, dtype=torch.float32, attn_implementation="eager").eval()
    ids = np.random.default_rng(length).integers(0, minilm.config.vocab_size, length).tolist()
    expected = reference(model, ids)
    names = [name for name in expected if length <= 7 or name.endswith(("resid_mid", "resid_post", "attn_probs"))]
    assert errors(ours(minilm, ids, names), {name: expected[name] for name in names}) == {}


def test_minilm_has_every_point_but_a_final_norm_and_logits(minilm: LoadedModel) -> None:
    config = minilm.config
    assert (config.n_layers, config.d_model, config.n_heads, config.causal) == (6, 384, 12, False)
    assert len(list(points_of(config))) == 6 * 13
    assert minilm.parameters == 22_713_216 - 384 * 384 - 384  # all but the pooler


def test_minilms_tokenizer_is_that_of_transformers(minilm: LoadedModel, minilm_directory: Path) -> None:
    ids = encode(minilm.tokenizer, TEXT, add_special_tokens=True)
    assert ids == AutoTokenizer.from_pretrained(minilm_directory)(TEXT)["input_ids"]
    assert [strings(minilm.tokenizer, ids)[i] for i in (0, -1)] == ["[CLS]", "[SEP]"]
    assert encode(minilm.tokenizer, TEXT, add_special_tokens=False) == ids[1:-1]
    assert len(encode(minilm.tokenizer, "river " * 700, add_special_tokens=True)) == 702


CONFIGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "one token type": {"type_vocab_size": 1},
    "another eps": {"layer_norm_eps": 0.1},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "relu": {"hidden_act": "relu"},
    "one head": {"num_attention_heads": 1},
    "square matrices all through": {"intermediate_size": 33},
    "one layer": {"num_hidden_layers": 1},
    "a decoder": {"is_decoder": True},
}


@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS)
def test_bert_gives_the_points_of_transformers(tmp_path: Path, keys: dict[str, Any]) -> None:
    loaded = check(tmp_path, saved(tmp_path, bert(**keys), AutoModel), IDS)
    assert not loaded.config.unembedding
    assert loaded.config.causal is keys.get("is_decoder", False)


@pytest.mark.parametrize("keys", [{}, {"tie_word_embeddings": False, "hidden_act": "relu"}], ids=["tied", "untied"])
def test_a_masked_language_model_has_the_logits_of_transformers(tmp_path: Path, keys: dict[str, Any]) -> None:
    loaded = check(tmp_path, saved(tmp_path, bert(**keys), AutoModelForMaskedLM), IDS)
    assert loaded.config.unembedding
    assert loaded.config.tied is not bool(keys)


def test_a_file_of_pretraining_has_logits_and_its_pooled_heads_are_passed_over(tmp_path: Path) -> None:
    model = saved(tmp_path, bert(), AutoModelForMaskedLM)
    expected = reference(model, IDS)
    whole = ForPreTraining(bert())
    whole.load_state_dict(model.state_dict(), strict=False)
    whole.save_pretrained(tmp_path)
    assert {"bert.pooler.dense.weight", "cls.seq_relationship.bias"} <= set(load_file(tmp_path / WEIGHTS))
    assert errors(ours(load_model(tmp_path, name="m"), IDS, list(expected)), expected) == {}


def test_names_and_copies_of_older_files_are_read(tmp_path: Path) -> None:
    model = saved(tmp_path, bert(), AutoModelForMaskedLM)
    tensors = load_file(tmp_path / WEIGHTS)
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in tensors.items()
    }
    older["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    older["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    older["bert.embeddings.position_ids"] = torch.arange(POSITIONS)[None]
    rewrite(tmp_path, older)
    check(tmp_path, model, IDS)
    older["cls.predictions.decoder.bias"][3] += 1
    rewrite(tmp_path, older)
    with pytest.raises(CheckpointError, match=r"ties 'cls.predictions.decoder.bias' to 'cls.predictions.bias'"):
        load_model(tmp_path, name="m")


def test_a_head_that_is_not_served_is_refused_by_its_name(tmp_path: Path) -> None:
    saved(tmp_path, bert(), AutoModelForSequenceClassification)
    with pytest.raises(CheckpointError, match=r"tensor 'classifier\.bias' and 1 more are not used by this family"):
        load_model(tmp_path, name="m")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"add_cross_attention": True, "is_decoder": True}, "add_cross_attention is True"),
        ({"hidden_size": 34}, "hidden_size 34 is no multiple of num_attention_heads 3"),
    ],
)
def test_a_key_that_would_change_the_numbers_is_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    bert(**keys).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path, name="m")


def test_inputs_embeds_get_what_transformers_adds(tmp_path: Path) -> None:
    model = saved(tmp_path, bert(), AutoModelForMaskedLM)
    rows = np.random.default_rng(5).standard_normal((7, 33)).astype(np.float32)
    positions = [6, 0, 42, 3, 3, 1, 2]
    with torch.inference_mode():
        expected = model(
            inputs_embeds=torch.from_numpy(rows)[None],
            position_ids=torch.tensor([positions]),
            output_hidden_states=True,
        )
    found = ours(
        load_model(tmp_path, name="m"), rows, ["embeddings", "logits"], kind="inputs_embeds", positions=positions
    )
    assert row_error(found["embeddings"], expected.hidden_states[0][0].numpy()) <= 5e-5
    assert row_error(found["logits"], expected.logits[0].numpy()) <= 5e-5


def test_x_enters_a_layer_as_it_is(tiny: LoadedModel) -> None:
    whole = ours(tiny, IDS)
    for start in range(L + 1):
        x = whole[f"layers.{start}.resid_pre"] if start < L else whole[f"layers.{L - 1}.resid_post"]
        names = [f"layers.{L - 1}.resid_post", "logits"] if start < L else ["logits"]
        found = ours(tiny, x, names, kind="x", start=start)
        assert errors(found, {name: whole[name] for name in names}) == {}
    assert np.array_equal(ours(tiny, x, ["layers.0.resid_pre"], kind="x")["layers.0.resid_pre"], x)


def test_a_post_norm_layer_is_what_the_names_say(tiny: LoadedModel) -> None:
    points = ours(tiny, IDS)
    for i in range(L):
        own = {kind: points[f"layers.{i}.{kind}"] for kind in ("resid_pre", "attn_out", "ln1", "mlp_out", "ln2")}
        layer = tiny.stack.layers[i]
        assert np.array_equal(points[f"layers.{i}.resid_mid"], own["resid_pre"] + own["attn_out"])
        ln2 = layer.ln2(torch.from_numpy(own["ln1"] + own["mlp_out"])).numpy()
        assert row_error(own["ln2"], ln2) <= 1e-6
        assert np.array_equal(own["ln2"], points[f"layers.{i}.resid_post"])


def test_what_left_a_norm_is_said_to_be_normed(tiny: LoadedModel) -> None:
    about = {point.name: describe(point, tiny) for point in points_of(tiny.config)}
    normed = {name for name, one in about.items() if one["normed"]}
    assert normed == {f"layers.{i}.{kind}" for i in range(L) for kind in ("resid_pre", "ln1", "ln2", "resid_post")}
    assert about["layers.1.ln1"]["textbook"] == "O = LN(T3)"
    assert about["layers.1.attn_probs"]["causal"] is False


def test_results_come_in_the_order_that_was_announced(tiny: LoadedModel) -> None:
    wanted = tuple(Wanted(point.name, point) for point in reversed(list(points_of(tiny.config))))
    order: list[str] = []

    class Notes:
        takes_parts = False

        def put(self, wanted: Wanted, tensors: tuple[torch.Tensor, ...]) -> None:
            order.extend(result_names(wanted))

        def fail(self, error: Exception) -> None:
            raise error

    run(tiny.stack, [Sequence("tokens", np.array(IDS), 0, L, wanted)], [Notes()])
    assert order == names_as_made([wanted], tiny.config)


def test_bert_gives_a_sequence_the_same_alone_and_in_company(tiny: LoadedModel) -> None:
    assert company_errors(tiny, [IDS, IDS[:1], IDS[::-1], IDS[3:5]]) == []
