"""A checkpoint is served as it was trained, or refused with one line that says what is wrong with which file."""

import hashlib
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from model.checkpoint.convert import convert
from model.checkpoint.initialise import initialise
from model.checkpoint.load import LoadedModel, load_model
from model.errors import CheckpointError
from model.stack import Stack
from tests.model.collect import ask, same_bits
from tests.model.tiny import FAMILIES, L, V, every_family, gpt2, llama, saved, textbook

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return every_family(tmp_path_factory.mktemp("originals"))


@pytest.fixture
def copy_of(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(originals[family], tmp_path / family))


Copy = Callable[[str], Path]


def set_keys(directory: Path, **keys: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def change(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    edit(tensors)
    save_file(tensors, directory / WEIGHTS)


def check_refusal(caught: pytest.ExceptionInfo[CheckpointError], *words: object) -> None:
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in map(str, words) if word not in message] == []


def refuse(directory: Path, *words: object) -> None:
    """Loading fails, with one line that has the directory and these words in it."""
    with pytest.raises(CheckpointError) as caught:
        load_model(directory, name="m")
    check_refusal(caught, directory, *words)


def accept(directory: Path, **options: Any) -> LoadedModel:
    model = load_model(directory, name="m", **options)
    ask(model.stack, "x", torch.ones(2, model.config.d_model), "layers.*.resid_post")
    return model


# paths


def test_a_path_without_a_model_is_refused(tmp_path: Path, copy_of: Copy) -> None:
    refuse(tmp_path / "nowhere", "no such directory")
    refuse(tmp_path, "config.json")
    directory = copy_of("gpt2")
    refuse(directory / WEIGHTS, "no such directory")
    (directory / WEIGHTS).unlink()
    refuse(directory, WEIGHTS)
    (directory / PICKLE).write_bytes(b"")
    refuse(directory, WEIGHTS, PICKLE, "headwater convert")


# config.json


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"model_type": "gpt2"'])
def test_a_config_that_is_no_json_object_is_refused(copy_of: Copy, content: bytes) -> None:
    directory = copy_of("gpt2")
    (directory / "config.json").write_bytes(content)
    refuse(directory, "config.json")


@pytest.mark.parametrize("family", ["mamba", "t5", "", None, 3, ["gpt2"], {"gpt2": 1}])
def test_an_unknown_family_is_refused_and_the_known_ones_named(copy_of: Copy, family: Any) -> None:
    directory = copy_of("gpt2")
    set_keys(directory, model_type=family)
    refuse(
        directory,
        "config.json",
        "model_type",
        repr(family),
        "bert, gpt2, gpt_neo, gpt_neox, llama, mistral, opt, qwen2, textbook",
    )


REFUSED_KEYS = [
    ("llama", "sliding_window", 4096),
    ("llama", "use_sliding_window", True),
    ("llama", "rope_scaling", {"type": "linear", "factor": 2.0}),
    ("llama", "rope_parameters", {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}),
    ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": 10000.0, "factor": 4.0}),
    ("llama", "rope_parameters", {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ("llama", "rope_parameters", [10000.0]),
    ("llama", "rope_theta", -1.0),
    ("llama", "partial_rotary_factor", 0.5),
    ("llama", "pretraining_tp", 2),
    ("llama", "quantization_config", {"quant_method": "gptq"}),
    ("llama", "attention_multiplier", 0.1),
    ("llama", "hidden_act", "quick_gelu"),
    ("llama", "hidden_size", "30"),
    ("llama", "hidden_size", 30.0),
    ("llama", "num_hidden_layers", 0),
    ("llama", "num_hidden_layers", True),
    ("llama", "rms_norm_eps", -1e-5),
    ("llama", "rms_norm_eps", "tiny"),
    ("llama", "mlp_bias", "no"),
    ("gpt2", "n_embd", 32),
    ("gpt2", "n_head", -3),
    ("gpt2", "n_inner", 0),
    ("gpt2", "activation_function", "tanh"),
    ("gpt2", "activation_function", ["gelu"]),
    ("gpt2", "scale_attn_weights", 1),
    ("gpt2", "add_cross_attention", True),
    ("gpt2", "sliding_window", 128),
    ("gpt2", "attn_logit_softcapping", 50.0),
    ("gpt2", "layer_norm_epsilon", float("nan")),
    ("textbook", "rope_theta", 10000.0),
    ("textbook", "causal", "yes"),
    ("textbook", "max_positions", 0),
    ("textbook", "d_model", None),
]


@pytest.mark.parametrize(("family", "key", "value"), REFUSED_KEYS)
def test_a_config_key_that_would_change_the_numbers_is_refused_by_name(
    copy_of: Copy, family: str, key: str, value: Any
) -> None:
    directory = copy_of(family)
    if key == "rope_theta":
        set_keys(directory, rope_parameters=None)
    set_keys(directory, **{key: value})
    refuse(directory, "config.json", key)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_key_value_heads": 4}, ["6", "4"]),
        ({"head_dim": 5}, ["head width", "5"]),
    ],
)
def test_numbers_that_make_no_stack_are_refused(copy_of: Copy, keys: dict[str, Any], words: list[str]) -> None:
    directory = copy_of("llama")
    set_keys(directory, **keys)
    refuse(directory, *words)


NEUTRAL_KEYS = [
    ("llama", {"sliding_window": None, "use_sliding_window": False, "rope_scaling": None, "pretraining_tp": 1}),
    ("llama", {"something_new": None, "another": False, "a_third": [], "a_fourth": {}}),
    ("llama", {"rope_parameters": {"rope_theta": 10000.0}}),
    ("llama", {"rope_parameters": {"rope_theta": 10000.0, "type": "default"}}),
    ("gpt2", {"torch_dtype": "float32", "attn_pdrop": 0.5, "n_ctx": 1024, "_name_or_path": "x", "task": None}),
]


@pytest.mark.parametrize(("family", "keys"), NEUTRAL_KEYS)
def test_a_config_key_that_changes_nothing_is_accepted(copy_of: Copy, family: str, keys: dict[str, Any]) -> None:
    directory = copy_of(family)
    set_keys(directory, **keys)
    accept(directory)


def test_an_unknown_key_is_accepted_where_it_is_named_as_harmless(copy_of: Copy) -> None:
    directory = copy_of("gpt2")
    set_keys(directory, my_note="trained on a Tuesday", other=1)
    refuse(directory, "my_note", "--ignore-config-keys")
    with pytest.raises(CheckpointError, match="other"):
        load_model(directory, name="m", ignore_config_keys=["my_note"])
    accept(directory, ignore_config_keys=["my_note", "other"])


# tensors

EMBEDDING = {"textbook": "E", "gpt2": "transformer.wte.weight", "llama": "model.embed_tokens.weight"}
MATRIX = {
    "textbook": "layers.1.W_O",
    "gpt2": "transformer.h.1.mlp.c_fc.weight",
    "llama": "model.layers.1.self_attn.k_proj.weight",
}


@pytest.mark.parametrize("family", MATRIX)
def test_a_missing_tensor_is_refused_by_name(copy_of: Copy, family: str) -> None:
    for name in (MATRIX[family], EMBEDDING[family]):
        directory = copy_of(family)
        change(directory, lambda tensors, name=name: tensors.pop(name))
        refuse(directory, WEIGHTS, name.removeprefix("transformer.").removeprefix("model."), "missing")
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("textbook", "layers.1.b_Q"),
        ("textbook", "layers.3.W_O"),
        ("gpt2", "transformer.h.3.ln_1.weight"),
        ("gpt2", "score.weight"),
        ("gpt2", "transformer.h.1.attn.biases"),
        ("llama", "model.layers.1.self_attn.q_norm.weight"),
        ("llama", "model.layers.1.self_attn.q_proj.bias"),
    ],
)
def test_a_tensor_that_nobody_uses_is_refused_by_name(copy_of: Copy, family: str, name: str) -> None:
    directory = copy_of(family)
    change(directory, lambda tensors: tensors.update({name: torch.ones(3)}))
    refuse(directory, WEIGHTS, name.removeprefix("transformer.").removeprefix("model."))


@pytest.mark.parametrize("family", MATRIX)
def test_a_tensor_of_another_shape_is_refused_with_both_shapes(copy_of: Copy, family: str) -> None:
    directory, name = copy_of(family), MATRIX[family]
    shape = list(load_file(directory / WEIGHTS)[name].shape)
    change(directory, lambda tensors: tensors.update({name: tensors[name].T.contiguous()}))
    refuse(directory, WEIGHTS, name.rpartition(".")[0].rpartition(".")[2], shape, shape[::-1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_a_tensor_that_is_not_in_floating_point_is_refused(copy_of: Copy, dtype: torch.dtype) -> None:
    directory, name = copy_of("gpt2"), MATRIX["gpt2"]
    change(directory, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    refuse(directory, WEIGHTS, "h.1.mlp.c_fc.weight", dtype)


def test_a_parameter_under_two_names_is_refused(copy_of: Copy) -> None:
    directory = copy_of("gpt2")
    change(directory, lambda tensors: tensors.update({"wte.weight": torch.zeros(V, 33)}))
    refuse(directory, WEIGHTS, "transformer.wte.weight", "wte.weight")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_head_that_is_tied_and_differs_is_refused(copy_of: Copy, family: str) -> None:
    directory = copy_of(family)
    set_keys(directory, tie_word_embeddings=True)

    def another_head(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors[EMBEDDING[family]] + 1e-6

    change(directory, another_head)
    refuse(directory, WEIGHTS, "lm_head.weight", "differ")


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", bytes(100), b"\xff" * 100, b"\x08" + bytes(7) + b"not json", b"\x02" + bytes(7) + b"{}"],
)
def test_a_file_of_weights_that_is_none_is_refused(copy_of: Copy, content: bytes) -> None:
    directory = copy_of("gpt2")
    (directory / WEIGHTS).write_bytes(content)
    refuse(directory, WEIGHTS)


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.9999])
def test_a_file_of_weights_cut_short_is_refused(copy_of: Copy, kept: float) -> None:
    directory = copy_of("llama")
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[: int(kept * len(content))])
    refuse(directory, WEIGHTS)


def test_buffers_of_old_gpt2_files_are_passed_over(copy_of: Copy) -> None:
    directory = copy_of("gpt2")
    before = accept(directory)

    def old(tensors: dict[str, Tensor]) -> None:
        for i in range(L):
            tensors[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 43, 43, dtype=torch.uint8).tril()
            tensors[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)

    change(directory, old)
    tokens = [1, 5, 40]
    found, again = (ask(x.stack, "tokens", tokens, "logits")["logits"] for x in (before, accept(directory)))
    assert same_bits(found, again)


def test_stored_rotary_frequencies_must_be_those_of_the_config(copy_of: Copy) -> None:
    directory = copy_of("llama")
    right = 1 / 10000.0 ** (torch.arange(0, 10, 2) / 10)

    def frequencies(values: Tensor) -> Callable[[dict[str, Tensor]], None]:
        return lambda tensors: tensors.update(
            {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": values.clone() for i in range(L)}
        )

    change(directory, frequencies(right))
    accept(directory)
    change(directory, frequencies(right / 2))
    refuse(directory, WEIGHTS, "inv_freq", "rope_theta")
    change(directory, frequencies(right[:3]))
    refuse(directory, WEIGHTS, "inv_freq")


# tokenizer.json


def test_a_tokenizer_that_does_not_fit_is_refused(copy_of: Copy) -> None:
    directory = copy_of("gpt2")
    path = directory / "tokenizer.json"
    path.write_text("{}")
    refuse(directory, "tokenizer.json")
    Tokenizer(models.WordLevel({str(i): i for i in range(V + 1)}, unk_token="0")).save(str(path))
    refuse(directory, "tokenizer.json", V + 1, V)


def test_a_tokenizer_neither_pads_nor_cuts(copy_of: Copy) -> None:
    directory = copy_of("gpt2")
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.enable_padding(length=5)
    tokenizer.enable_truncation(max_length=1)
    tokenizer.save(str(directory / "tokenizer.json"))
    model = accept(directory)
    assert model.tokenizer is not None
    assert model.tokenizer.encode("b").ids == [1]
    assert model.tokenizer.encode(["b", "a", "b"], is_pretokenized=True).ids == [1, 0, 1]


# pickles


class Evil:
    """Unpickling this writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.write_text, (self.marker, "the pickle has run")


def as_pickle(directory: Path, content: Any, **options: Any) -> None:
    (directory / WEIGHTS).unlink(missing_ok=True)
    torch.save(content, directory / PICKLE, **options)


def state_of(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / WEIGHTS)


def quietly(_: str) -> None:
    pass


def refuse_to_convert(source: Path, *words: object) -> None:
    """Converting fails with one line, and leaves no file behind, not even a hidden one."""
    before = sorted(source.parent.rglob("*"))
    with pytest.raises(CheckpointError) as caught:
        convert(source, source.parent / "converted", quietly)
    check_refusal(caught, *words)
    assert sorted(source.parent.rglob("*")) == before


def test_a_pickle_beside_the_weights_is_never_opened(copy_of: Copy, tmp_path: Path) -> None:
    directory, marker = copy_of("gpt2"), tmp_path / "marker"
    (directory / PICKLE).write_bytes(pickle.dumps(Evil(marker)))
    accept(directory)
    assert not marker.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_holds_code_is_refused_and_does_not_run(copy_of: Copy, tmp_path: Path, zipped: bool) -> None:
    directory, marker = copy_of("gpt2"), tmp_path / "marker"
    for content in (Evil(marker), state_of(directory) | {"extra": Evil(marker)}):
        kept = state_of(directory)
        as_pickle(directory, content, _use_new_zipfile_serialization=zipped)
        refuse_to_convert(directory, PICKLE)
        assert not marker.exists()
        save_file(kept, directory / WEIGHTS)
    as_pickle(directory, {})
    (directory / PICKLE).write_bytes(pickle.dumps(Evil(marker)))
    refuse_to_convert(directory, PICKLE)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content", [torch.ones(3), [torch.ones(3)], {"a": 3}, {"model": {"a": torch.ones(3)}}, "words"]
)
def test_a_pickle_that_is_no_table_of_tensors_is_refused(copy_of: Copy, content: Any) -> None:
    directory = copy_of("gpt2")
    as_pickle(directory, content)
    refuse_to_convert(directory, PICKLE)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04" + bytes(100), b"\x80\x02."])
def test_a_pickle_that_is_broken_is_refused(copy_of: Copy, content: bytes) -> None:
    directory = copy_of("gpt2")
    (directory / WEIGHTS).unlink()
    (directory / PICKLE).write_bytes(content)
    refuse_to_convert(directory, PICKLE)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "as torch wrote before 1.6"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_converted_pickle_gives_the_same_numbers(copy_of: Copy, tmp_path: Path, family: str, zipped: bool) -> None:
    directory = copy_of(family)
    before = ask(load_model(directory, name="m").stack, "tokens", [1, 40, 7], "logits")["logits"]
    as_pickle(directory, state_of(directory), _use_new_zipfile_serialization=zipped)
    convert(directory, tmp_path / "deeper" / "converted", quietly)
    after = ask(accept(tmp_path / "deeper" / "converted").stack, "tokens", [1, 40, 7], "logits")["logits"]
    assert same_bits(before, after)
    assert (directory / PICKLE).exists()
    assert [path.name for path in (tmp_path / "deeper").iterdir()] == ["converted"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_pickle_may_hold_a_tied_head_twice(copy_of: Copy, tmp_path: Path, shared: bool) -> None:
    directory = copy_of("gpt2")
    state = state_of(directory)
    embedding = state[EMBEDDING["gpt2"]]
    state["lm_head.weight"] = embedding if shared else embedding.clone()
    as_pickle(directory, state)
    convert(directory, tmp_path / "converted", quietly)
    assert accept(tmp_path / "converted").config.tied


def test_a_pickle_of_parts_of_one_storage_is_converted_part_by_part(copy_of: Copy, tmp_path: Path) -> None:
    directory = copy_of("gpt2")
    state = state_of(directory)
    expected = {name: tensor.clone() for name, tensor in state.items()}
    whole = torch.cat([tensor.flatten() for tensor in state.values()])
    for name, part in zip(state, whole.split([t.numel() for t in state.values()]), strict=True):
        state[name] = part.reshape(state[name].shape)
    as_pickle(directory, state)
    convert(directory, tmp_path / "converted", quietly)
    found = state_of(tmp_path / "converted")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_converting_needs_a_source_and_a_free_destination(copy_of: Copy, tmp_path: Path) -> None:
    refuse_to_convert(tmp_path / "nowhere", tmp_path / "nowhere")
    directory = copy_of("gpt2")
    refuse_to_convert(directory, directory, WEIGHTS)
    state = state_of(directory)
    (directory / WEIGHTS).unlink()
    refuse_to_convert(directory, directory, PICKLE)
    as_pickle(directory, state)
    destination = tmp_path / "converted"
    destination.mkdir()
    (destination / "precious").write_text("keep me")
    refuse_to_convert(directory, destination)
    assert (destination / "precious").read_text() == "keep me"
    shutil.rmtree(destination)
    destination.write_text("a file")
    refuse_to_convert(directory, destination)
    assert destination.read_text() == "a file"


def test_a_config_that_cannot_be_served_is_refused_before_the_pickle_is_read(copy_of: Copy) -> None:
    directory = copy_of("gpt2")
    as_pickle(directory, state_of(directory))
    set_keys(directory, sliding_window=128)
    refuse_to_convert(directory, "sliding_window")


# memory and identity


def share_in_file(stack: Stack, path: Path) -> float:
    """What part of the parameters' bytes lies in the file's own mapping."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == str(path):
            spans.append([int(end, 16) for end in fields[0].split("-")])
    sizes = [(p.nbytes, any(low <= p.data_ptr() < high for low, high in spans)) for p in stack.parameters()]
    return sum(size for size, inside in sizes if inside) / sum(size for size, _ in sizes)


@pytest.mark.parametrize(("family", "least"), [("gpt2", 0.94), ("llama", 1.0), ("textbook", 0.5)])
def test_weights_stay_in_the_mapped_file(originals: dict[str, Path], family: str, least: float) -> None:
    """All but what is laid out anew; of gpt2 that is the biases of q, k and v too, which become one."""
    path = originals[family]
    assert share_in_file(load_model(path, name="m").stack, (path / WEIGHTS).resolve()) >= least


def test_loading_a_large_model_takes_memory_for_its_weights_once(
    tmp_path: Path, originals: dict[str, Path], smollm2_directory: Path
) -> None:
    textbook(tmp_path / "m", n_layers=8, d_model=512, n_heads=8, d_k=64, d_v=64, d_ff=2048)
    script = """
import sys
from pathlib import Path
from model.checkpoint.load import load_model
def anonymous():
    (line,) = [s for s in open("/proc/self/status").read().splitlines() if s.startswith("RssAnon")]
    return int(line.split()[1]) * 1024
for directory in map(Path, sys.argv[1:]):
    before = anonymous()
    kept = load_model(directory, name="m")
    print(anonymous() - before)
"""
    # the first one pays for modules that torch imports late
    directories = [originals["llama"], tmp_path / "m", smollm2_directory]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, directories)], capture_output=True, text=True, timeout=120, check=True
    )
    for directory, taken in list(zip(directories, done.stdout.split(), strict=True))[1:]:
        size = (directory / WEIGHTS).stat().st_size
        assert size > 90e6
        assert int(taken) < 1.5 * size  # the layers' weights, laid out anew; nothing twice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("family", ["textbook", "gpt2", "llama"])
def test_tied_parameters_are_one_and_counted_once(copy_of: Copy, family: str, dtype: torch.dtype) -> None:
    """Also where they are converted on the way: two copies would cost memory, and the count be wrong."""
    directory = copy_of(family)
    set_keys(directory, **({} if family == "textbook" else {"tie_word_embeddings": True}))

    def halve(tensors: dict[str, Tensor]) -> None:
        tensors.pop("lm_head.weight", None)
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    change(directory, halve)
    model = accept(directory)
    assert model.stack.token_embedding is not None
    assert model.stack.unembedding is not None
    numbers = sum(tensor.numel() for tensor in state_of(directory).values())
    assert model.parameters == numbers
    assert model.stack.unembedding.weight.data_ptr() == model.stack.token_embedding.weight.data_ptr()


def test_the_parameters_are_as_many_as_transformers_counts(
    tmp_path: Path, mgm: LoadedModel, smollm2: LoadedModel, mgm_reference: nn.Module, smollm2_reference: nn.Module
) -> None:
    assert mgm.parameters == mgm_reference.num_parameters()
    assert smollm2.parameters == smollm2_reference.num_parameters()
    for name, config in (("untied", llama()), ("gpt2", gpt2()), ("shared kv", llama(num_key_value_heads=1))):
        theirs = saved(tmp_path / name, config)
        assert load_model(tmp_path / name, name="m").parameters == theirs.num_parameters()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_weights_have_the_same_sha256(copy_of: Copy, family: str) -> None:
    directory = copy_of(family)
    first, second = accept(directory), accept(directory)
    assert first.weights_sha256 == second.weights_sha256
    assert first.weights_sha256 == hashlib.sha256((directory / WEIGHTS).read_bytes()).hexdigest()
    change(directory, lambda tensors: next(iter(tensors.values())).add_(1))
    assert accept(directory).weights_sha256 != first.weights_sha256


def test_a_seed_makes_the_same_weights_again_and_another_seed_others(tmp_path: Path) -> None:
    sizes = {"n_layers": 2, "d_model": 31, "n_heads": 3}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        initialise(tmp_path / name, seed=seed, **sizes)
    a, b, c = ((tmp_path / name / WEIGHTS).read_bytes() for name in "abc")
    assert a == b != c
    with pytest.raises(CheckpointError) as caught:
        initialise(tmp_path / "a", seed=1, **sizes)
    check_refusal(caught, tmp_path / "a")
    for wrong in ({"d_model": 0}, {"n_heads": "3"}, {"colour": "red"}, {"activation": "sine"}):
        with pytest.raises(CheckpointError) as caught:
            initialise(tmp_path / "d", seed=1, **sizes | wrong)
        check_refusal(caught, *wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_ends_the_start_with_its_name(copy_of: Copy, wrong: float) -> None:
    directory = copy_of("llama")

    def edit(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][2, 3] = wrong

    change(directory, edit)
    refuse(directory, "model.layers.1.mlp.up_proj.weight", WEIGHTS, wrong, "[2, 3]")


def test_a_weight_that_float16_cannot_hold_is_refused_where_that_is_asked_for(copy_of: Copy) -> None:
    directory = copy_of("llama")

    def edit(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"][5] = 70_000.0

    change(directory, edit)
    assert load_model(directory, name="a").stack is not None
    with pytest.raises(CheckpointError) as caught:
        load_model(directory, name="a", dtype="float16")
    check_refusal(caught, "final_norm", "float16", "inf", "[5]")


def test_what_is_written_can_be_read_by_everybody(tmp_path: Path) -> None:
    """In a container the service is nobody that the files' owner has heard of."""
    initialise(tmp_path / "made", seed=1, n_layers=1, d_model=8, n_heads=2, vocab_size=5, max_positions=7)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(tmp_path / "made" / "config.json", pickled)
    torch.save(load_file(tmp_path / "made" / "model.safetensors"), pickled / "pytorch_model.bin")
    convert(pickled, tmp_path / "converted", lambda _: None)
    for name in ("made", "converted"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o755
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()}
        assert modes == {"config.json": 0o644, "model.safetensors": 0o644}
