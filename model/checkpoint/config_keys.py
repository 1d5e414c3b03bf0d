"""A config.json, read key by key, so that no key that changes the numbers is passed over."""

from collections.abc import Collection
from typing import Any

from model.errors import CheckpointError

# Keys that Hugging Face writes into every config and that have no part in the forward pass of a loaded model.
HARMLESS = frozenset(
    """
    _attn_implementation _commit_hash _name_or_path architectures auto_map bad_words_ids begin_suppress_tokens
    bos_token_id chunk_size_feed_forward cls_token_id custom_pipelines decoder_start_token_id diversity_penalty
    do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range
    is_decoder keys_to_ignore_at_inference label2id length_penalty mask_token_id max_length min_length model_type
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_scores pad_token_id prefix problem_type remove_invalid_values repetition_penalty
    return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unk_token_id use_bfloat16 use_cache
    """.split()
)

MAX_LAYERS = 10_000


class ConfigKeys:
    """The keys of one config, each read once; `finish` refuses what nobody read.

    Every error is a CheckpointError that names the file, the key and its value.
    """

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.where = where
        self._raw = raw
        self._read: set[str] = set()

    def fault(self, message: str) -> CheckpointError:
        """An error about this file."""
        return CheckpointError(f"{self.where}: {message}")

    def is_null(self, key: str) -> bool:
        """Whether the key is there and says null, where a family takes that for something else than absent."""
        return key in self._raw and self._raw[key] is None

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands; a null counts as absent."""
        self._read.add(key)
        value = self._raw.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = 1 << 31) -> int:
        """A whole number from `minimum` to `maximum`; without a default the key must be there."""
        value = self._needed(key, default)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.fault(f"{key} is {value!r:.40}, and must be a whole number from {minimum} to {maximum}")
        return value

    def layers(self, key: str, default: int | None = None) -> int:
        """A number of layers."""
        return self.integer(key, default, maximum=MAX_LAYERS)

    def number(self, key: str, default: float | None = None) -> float:
        """A number that is not negative."""
        value = self._needed(key, default)
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise self.fault(f"{key} is {value!r}, and must be a number that is not negative")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.fault(f"{key} is {value!r}, and must be true or false")
        return value

    def choice(self, key: str, choices: dict[str, str], default: str | None = None) -> str:
        """One of the known words, translated into ours."""
        value = self._needed(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.fault(f"{key} is {value!r}, which is not supported; known are {', '.join(choices)}")
        return choices[value]

    def only(self, key: str, *neutral: Any) -> None:
        """Refuse a key that changes the numbers in a way that is not supported, unless it is absent or neutral."""
        value = self.get(key)
        if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
            raise self.fault(f"{key} is {value!r}, which would change the numbers and is not supported")

    def finish(self, harmless: Collection[str], ignore: Collection[str] = ()) -> None:
        """Refuse a key that was not read and says something, unless it is known to be harmless."""
        for key, value in self._raw.items():
            silent = value is None or value is False or value == {} or value == []
            if not silent and key not in self._read | HARMLESS | set(harmless) | set(ignore):
                raise self.fault(
                    f"unknown key {key!r} ({value!r:.60}) may change the numbers; if it does not, "
                    f"name it in --ignore-config-keys"
                )

    def _needed(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.fault(f"{key} is missing")
        return value
