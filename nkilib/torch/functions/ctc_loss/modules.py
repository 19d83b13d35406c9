"""``CTCLoss``, the module with the arguments of :func:`nkilib.torch.ctc_loss`."""

from __future__ import annotations

from torch import Tensor, nn

from nkilib.torch.functions.ctc_loss.functional import Lengths, ctc_loss


class CTCLoss(nn.Module):
    """``torch.nn.CTCLoss`` on the kernels.

    Args:
        blank, reduction, zero_infinity: as for :func:`~nkilib.torch.ctc_loss`.
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__()
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        """The loss."""
        return ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
