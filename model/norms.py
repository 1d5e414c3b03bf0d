"""The two norms: LayerNorm of the textbook, and RMSNorm."""

from torch import nn

from model.config import StackConfig


def norm(config: StackConfig) -> nn.Module:
    """A norm over the last dimension of [T, d].

    LayerNorm: gamma * (x - mean) / sqrt(var + eps) + beta (Jurafsky & Martin 7.2).
    RMSNorm: gamma * x / sqrt(mean(x^2) + eps) (Zhang & Sennrich, 2019).
    """
    if config.norm == "rms_norm":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps)
