# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``CrossEntropyLoss``: the module with the arguments of :func:`nkilib.torch.cross_entropy`."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import Unpack

from nkilib.core.host.keywords import refuse_unknown, shows
from nkilib.experimental.loss.cross_entropy.options import LossOptions, RecipeOptions
from nkilib.torch.functions.cross_entropy.checks import RECIPE
from nkilib.torch.functions.cross_entropy.functional import cross_entropy
from nkilib.torch.functions.cross_entropy.outputs import CrossEntropyOutputs


class CrossEntropyLoss(nn.Module):
    """``torch.nn.CrossEntropyLoss``, computed by the kernels; ``forward(input, target)`` takes its arguments in
    PyTorch's order.

    Example::

        criterion = CrossEntropyLoss(ignore_index=-100, class_dim=-1)
        loss = criterion(logits, target)  # [batch, sequence, V] and [batch, sequence]

    Args:
        weight: [V] floating, kept as a buffer that moves with the module; None means 1.
        ignore_index: see :func:`~nkilib.torch.cross_entropy`, also for the arguments not listed here.
        normalizer: a buffer that moves with the module, but is not in the state dict. Prefer an integer: a floating
            tensor is rounded when the module is cast, as by ``model.to(torch.bfloat16)``. Pass a normalizer that
            changes from step to step to the call of the module instead.
    """

    weight: Tensor | None
    normalizer: Tensor | None

    @shows(RecipeOptions, defaults=LossOptions)
    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        normalizer: Tensor | None = None,
        inplace: bool = False,
        return_outputs: bool = False,
        class_dim: int = 1,
        **recipe: Unpack[RecipeOptions],
    ) -> None:
        super().__init__()
        refuse_unknown(type(self), recipe, RECIPE)
        self.register_buffer("weight", weight)
        self.register_buffer("normalizer", normalizer, persistent=False)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.inplace = inplace
        self.return_outputs = return_outputs
        self.class_dim = class_dim
        for name in RECIPE:
            setattr(self, name, recipe.get(name, getattr(LossOptions, name)))

    def forward(
        self, input: Tensor, target: Tensor, *, normalizer: Tensor | None = None
    ) -> Tensor | CrossEntropyOutputs:
        """Return the loss; a ``normalizer`` of the call replaces the module's."""
        return cross_entropy(
            input,
            target,
            self.weight,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
            normalizer=self.normalizer if normalizer is None else normalizer,
            inplace=self.inplace,
            return_outputs=self.return_outputs,
            class_dim=self.class_dim,
            **{name: getattr(self, name) for name in RECIPE},
        )
