"""Which keys a row may attend to: shared by attention and by its maps, so that the two can never differ.

Names end in their dimensions: R query rows, C keys.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Row i sees key j where j <= i if `causal`, and i - `window` < j if there is a window.

    A window w thus is w keys wide, the row's own included, as transformers counts `sliding_window` and GPT-Neo its
    `window_size`. Rows and keys count within one sequence, in row order whatever the positions are.
    """

    causal: bool
    window: int | None = None

    def hides_within(self, n: int) -> bool:
        """Whether the window hides a key in a sequence of n rows."""
        return self.window is not None and n > self.window

    def keys_of(self, first: int, last: int) -> slice:
        """The keys that rows `first` to `last` - 1 can see between them, under a causal window."""
        assert self.causal
        return slice(0 if self.window is None else max(0, first - self.window + 1), last)

    def hidden(self, rows_R: Tensor, keys_C: Tensor) -> Tensor | None:
        """[R, C], true where the row may not see the key; None where every row sees every key."""
        if not self.causal:
            return None
        hidden_RC = keys_C > rows_R[:, None]
        if self.window is not None:
            hidden_RC |= keys_C <= rows_R[:, None] - self.window
        return hidden_RC
