"""What the operators are told beside tensors, named as the kernels name it."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch import Tensor


class LossOptions(NamedTuple):
    """The options that both kernels take, named as they name them.

    Attributes:
        ignore_index: target of positions that do not count; any integer.
        label_smoothing: share of the target probability that is spread over all classes, 0 to 1.
        logit_softcap: c, from 1e-30 to 1e30, replaces a logit x by c * tanh(x / c), except -inf; None leaves it.
        lse_square_scale: factor of lse^2 in the loss, 0 to 1e30.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    logit_softcap: float | None = None
    lse_square_scale: float = 0.0


class Columns(NamedTuple):
    """Which classes the columns of the logits are, named as the kernels name it.

    Attributes:
        first_class: the class of the first column.
        num_classes: V, of all shards of the vocabulary; None: the columns are all classes.
    """

    first_class: int = 0
    num_classes: int | None = None

    def vocabulary(self, logits: Tensor) -> int:
        """V."""
        return logits.shape[1] if self.num_classes is None else self.num_classes


WHOLE: Final = Columns()
