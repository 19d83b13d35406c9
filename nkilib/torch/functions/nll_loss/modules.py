"""``NLLLoss``, the module with the arguments of :func:`nkilib.torch.nll_loss`."""

from __future__ import annotations

from torch import Tensor, nn

from nkilib.torch.functions.nll_loss.functional import nll_loss


class NLLLoss(nn.Module):
    """``torch.nn.NLLLoss`` on the kernels; ``forward(input, target)`` in that order, as there.

    Args:
        weight: [C] floating, kept as a buffer that moves with the module; None means 1.
        ignore_index, reduction, inplace: as for :func:`~nkilib.torch.nll_loss`.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.inplace = inplace

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return nll_loss(input, target, self.weight, self.ignore_index, self.reduction, inplace=self.inplace)
