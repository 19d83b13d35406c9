"""``DistillationLoss``, the module with the arguments of :func:`nkilib.torch.distillation_loss`."""

from __future__ import annotations

from torch import Tensor, nn

from nkilib.torch.functions.distillation.functional import distillation_loss


class DistillationLoss(nn.Module):
    """:func:`~nkilib.torch.distillation_loss` as a module; ``forward(student_logits, teacher_logits, labels=None)``.

    Args:
        temperature, direction, beta, ignore_index, reduction, temperature_squared, inplace: as for the function.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        direction: str = "forward",
        beta: float | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        temperature_squared: bool = False,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.direction = direction
        self.beta = beta
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.temperature_squared = temperature_squared
        self.inplace = inplace

    def forward(self, student_logits: Tensor, teacher_logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """The loss."""
        return distillation_loss(
            student_logits,
            teacher_logits,
            labels=labels,
            temperature=self.temperature,
            direction=self.direction,
            beta=self.beta,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            temperature_squared=self.temperature_squared,
            inplace=self.inplace,
        )
