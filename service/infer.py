"""An inference request of the Open Inference Protocol, through the same door as every call."""

from dataclasses import replace
from itertools import islice

from model.checkpoint.load import LoadedModel
from model.points import expand
from model.selection import result_names
from service.door import Admitted, admit, check_size
from service.errors import NotFound
from service.settings import Settings
from service.wire.v2_answer import MODEL_VERSION
from service.wire.v2_request import InferCall


def check_served(model: LoadedModel, name: str, version: str = MODEL_VERSION) -> None:
    """Refuse the name of a model that is not the one that is served, or a version that it does not have."""
    if name != model.name:
        raise NotFound(f"there is no model {name[:200]!r}; {model.name!r} is served here")
    if version != MODEL_VERSION:
        raise NotFound(f"model {model.name!r} has no version {version[:40]!r}; it has version {MODEL_VERSION!r}")


def admit_infer(asked: InferCall, model: LoadedModel, settings: Settings) -> tuple[Admitted, dict[str, bool]]:
    """What the door makes of a call, with results in the order asked, and of each whether it goes out in binary.

    Results of one answer may go either way, so the limit on JSON counts those alone that go out in it. Raises
    Unprocessable or TooLarge.
    """
    admitted = admit(asked.call, "safetensors", model, settings)
    binary = _binary(asked, admitted, model)
    specs = {spec.name: spec for spec in admitted.specs}
    in_json = [specs[name] for name, is_binary in binary.items() if not is_binary]
    if in_json:
        json_part = replace(admitted, specs=in_json, tokens=[])
        check_size(json_part, "json", settings, binary_form="binary_data")
        admitted = replace(admitted, held_bytes=admitted.held_bytes + json_part.json_nbytes)
    return replace(admitted, specs=[specs[name] for name in binary]), binary


def _binary(asked: InferCall, admitted: Admitted, model: LoadedModel) -> dict[str, bool]:
    """Of each result, in the order asked, whether its output asked for it in binary."""
    binary: dict[str, bool] = {}
    for sequence in admitted.sequences:
        wanted = iter(sequence.wanted)
        for i, is_binary in enumerate(asked.binary):
            # without outputs there is the default one, which is no pattern
            outputs = asked.call.outputs
            count = len(expand(outputs[i].name, model.config, sequence.start)) if outputs else 1
            for want in islice(wanted, count):
                binary.update(dict.fromkeys(result_names(want), is_binary))
    return binary
