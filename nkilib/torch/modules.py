"""``CrossEntropyLoss``, the module with the arguments of :func:`nkilib.torch.cross_entropy`."""

from __future__ import annotations

from torch import Tensor, nn

from nkilib.torch.functional import cross_entropy
from nkilib.torch.outputs import CrossEntropyOutputs


class CrossEntropyLoss(nn.Module):
    """``torch.nn.CrossEntropyLoss`` on the kernels; ``forward(input, target)`` in that order, as there.

    Example::

        criterion = CrossEntropyLoss(ignore_index=-100, class_dim=-1)
        loss = criterion(logits, target)  # [batch, sequence, V] and [batch, sequence]

    Args:
        weight: [V] floating, kept as a buffer that moves with the module; None means 1.
        ignore_index: as for :func:`~nkilib.torch.cross_entropy`, and so are all that follow.
        normalizer: kept as a buffer too, but not in the state dict. An integer, best: a floating one is rounded where
            the module is cast, as by ``model.to(torch.bfloat16)``. One that changes from step to step comes with the
            call of the module instead.
    """

    weight: Tensor | None
    normalizer: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        logit_softcap: float | None = None,
        lse_square_scale: float = 0.0,
        normalizer: Tensor | None = None,
        inplace: bool = False,
        return_outputs: bool = False,
        class_dim: int = 1,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("normalizer", normalizer, persistent=False)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.logit_softcap = logit_softcap
        self.lse_square_scale = lse_square_scale
        self.inplace = inplace
        self.return_outputs = return_outputs
        self.class_dim = class_dim

    def forward(
        self, input: Tensor, target: Tensor, *, normalizer: Tensor | None = None
    ) -> Tensor | CrossEntropyOutputs:
        """The loss; a ``normalizer`` of the call replaces the module's."""
        return cross_entropy(
            input,
            target,
            self.weight,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
            logit_softcap=self.logit_softcap,
            lse_square_scale=self.lse_square_scale,
            normalizer=self.normalizer if normalizer is None else normalizer,
            inplace=self.inplace,
            return_outputs=self.return_outputs,
            class_dim=self.class_dim,
        )
