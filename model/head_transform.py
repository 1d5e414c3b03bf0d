"""What BERT's masked-language-model head does to a row before the unembedding."""

from torch import Tensor, nn

from model.activations import ACTIVATIONS
from model.config import StackConfig
from model.linear import Linear
from model.norms import norm


class HeadTransform(nn.Module):
    """LN(act(x W + b)) (Devlin et al., 2019, as released); [T, d] in and out."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.activation]
        self.dense = Linear(config.d_model, config.d_model)
        self.norm = norm(config)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(x_TD)))  # type: ignore[no-any-return]
