"""What the peers that run transformers have in common: the model, and a pass of one sequence or of a padded batch."""

import functools

import torch
from transformers import AutoModel


@functools.cache
def model(directory, attention):
    """The model in float32; `attention` "eager" gives maps, "sdpa" is fast."""
    return AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention).eval()


@torch.inference_mode()
def forward(directory, calls):
    """The bytes of each call's answer; several run as one batch, padded on the right, with an attention mask.

    A call is the request's JSON: `tokens`, and what it wants ("final", "layers", "maps" of a `layer`). As most services
    would, all of a batch compute what one of them wants.
    """
    wants = {call["want"] for call in calls}
    lengths = [len(call["tokens"]) for call in calls]
    ids = torch.zeros(len(calls), max(lengths), dtype=torch.int64)
    mask = torch.zeros_like(ids) if len(calls) > 1 else None
    for row, call in enumerate(calls):
        ids[row, : lengths[row]] = torch.tensor(call["tokens"])
        if mask is not None:
            mask[row, : lengths[row]] = 1
    out = model(directory, "eager" if "maps" in wants else "sdpa")(
        ids,
        attention_mask=mask,
        use_cache=False,
        output_hidden_states="layers" in wants,
        output_attentions="maps" in wants,
    )
    return [_answer(out, row, call, n) for row, (call, n) in enumerate(zip(calls, lengths, strict=True))]


def _answer(out, row, call, n):
    if call["want"] == "layers":
        return b"".join(states[row, :n].numpy().tobytes() for states in out.hidden_states[1:])
    final = out.last_hidden_state[row, :n].numpy().tobytes()
    if call["want"] == "maps":
        return final + out.attentions[call["layer"]][row, :, :n, :n].numpy().tobytes()
    return final
