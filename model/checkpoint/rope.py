"""What configs say of rotary positions: in `rope_parameters` since transformers 5, in keys of their own before."""

import torch

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig
from model.errors import CheckpointError


def rotary(keys: ConfigKeys) -> float:
    """The base of the angles, in families that turn all of a head; anything else said of rotation is refused."""
    within = _within(keys)
    within.only("partial_rotary_factor", 1.0)
    keys.only("partial_rotary_factor", 1.0)
    return _theta(keys, within, "rope_theta")


def partial_rotary(keys: ConfigKeys, *, theta_key: str, fraction_key: str, fraction: float) -> tuple[float, float]:
    """The base of the angles, and the part of a head that is turned.

    `theta_key` and `fraction_key` are the family's older names, `fraction` its default.
    """
    within = _within(keys)
    fraction = within.number("partial_rotary_factor", keys.number(fraction_key, fraction))
    if not 0 < fraction <= 1:
        raise keys.fault(f"{fraction_key} is {fraction}, and must be above 0 and at most 1")
    theta = _theta(keys, within, theta_key)
    for key, value in (("rope_theta", theta), ("partial_rotary_factor", fraction)):
        # some files say it under both names
        if keys.number(key, value) != value:
            raise keys.fault(f"{key} is {keys.get(key)!r}, and elsewhere in the file {value}")
    return theta, fraction


def _within(keys: ConfigKeys) -> ConfigKeys:
    """The keys of `rope_parameters`; scalings of the angles, there or beside it, are refused."""
    keys.only("rope_scaling", {})
    keys.only("rope_interleaved", False)
    parameters = keys.get("rope_parameters", {})
    if not isinstance(parameters, dict):
        raise keys.fault(f"rope_parameters is {parameters!r}, and must be an object")
    within = ConfigKeys(parameters, f"{keys.where}: rope_parameters")
    within.only("rope_type", "default")
    within.only("type", "default")
    return within


def _theta(keys: ConfigKeys, within: ConfigKeys, key: str) -> float:
    theta = within.number("rope_theta", keys.number(key, 10000.0))
    within.finish(())
    if theta <= 0:
        raise keys.fault(f"{key} is {theta}, and must be above 0")
    return theta


def check_frequencies(config: StackConfig, tensors: CheckpointTensors, name: str) -> None:
    """Old files carry the rotary frequencies: they hold no parameter, but must be those of the config."""
    if name not in tensors:
        return
    assert config.rotary_theta is not None
    width = config.rotary_width or config.d_k
    stored = tensors.take(name, width // 2).float()
    pairs = torch.arange(0, width, 2, dtype=torch.float32)
    if not torch.allclose(stored, config.rotary_theta ** (-pairs / width), rtol=1e-2):
        raise CheckpointError(f"{tensors.path}: {name!r} differs from what rope_theta gives")
