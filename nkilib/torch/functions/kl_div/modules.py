"""``KLDivLoss``, the module with the arguments of :func:`nkilib.torch.kl_div`."""

from __future__ import annotations

from torch import Tensor, nn

from nkilib.torch.functions.kl_div.functional import kl_div


class KLDivLoss(nn.Module):
    """``torch.nn.KLDivLoss`` on the kernels; ``forward(input, target)`` in that order, as there.

    Args:
        reduction, log_target, inplace: as for :func:`~nkilib.torch.kl_div`.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False, *, inplace: bool = False) -> None:
        super().__init__()
        self.reduction = reduction
        self.log_target = log_target
        self.inplace = inplace

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return kl_div(input, target, self.reduction, self.log_target, inplace=self.inplace)
