# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``LinearCrossEntropyLoss``: the output layer and its loss as a module, with the parameters of PyTorch's module."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nkilib.torch.functions.cross_entropy.functional import CrossEntropyOutputs
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.functions.output_layer import is_fully_sharded
from nkilib.torch.losses.temperatures import keep_temperature


class LinearCrossEntropyLoss(nn.Module):
    """Output layer and cross-entropy as a module, in place of ``torch.nn.LinearCrossEntropyLoss``: its constructor and
    state dict keys, and :func:`~nkilib.torch.linear_cross_entropy`, computed by the kernels without logits in memory.

    Example::

        criterion = LinearCrossEntropyLoss(in_features=2048, num_classes=32000, dtype=torch.bfloat16)
        loss = criterion(hidden, target)  # [..., 2048] and [...]

    Args:
        in_features: D, the number of features.
        num_classes: V, the number of classes.
        out_features: further dimensions of the classes, which PyTorch's own operators compute.
        bias: whether the layer has a bias.
        device, dtype: the device and dtype of the layer.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored, ``"sum"`` does
            not, ``"none"`` returns one loss per position.
        weight: [V] floating, the class weights, kept as a buffer, which is in the state dict; None means 1.
        ignore_index: the class index of positions that have loss 0 and gradient 0; None means -100.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes.
        options: PyTorch's ``LinearCrossEntropyOptions``, which has no effect here.
        logit_softcap: c, replaces the logits by c * tanh(logits / c), from 1e-30 to 1e30; None applies no cap.
        temperature: divides the logits after the cap, from 1e-6 to 1e6. A number is a constant of the compiled kernel;
            a tensor is a buffer that is not in the state dict.
        logit_scale: multiplies the logits before the cap, from 1e-6 to 1e6.
        compute_dtype: bfloat16, float16 or float32, the dtype of the products. None: autocast's dtype if autocast is
            on, else that of the operands.
        lse_square_scale: the factor of the squared log-sum-exp (z-loss), from 0 to 1e30.
        normalizer: a scalar tensor that replaces the divisor of the mean: a buffer that is not in the state dict. Pass
            a normalizer that changes from step to step to the call of the module instead.
        return_outputs: return :class:`~nkilib.torch.CrossEntropyOutputs`.
        memory_limit: the bytes that a single launch for loss and gradients may use beside its inputs; None: gradients
            are computed in the backward.

    Attributes:
        linear: the layer, ``torch.nn.Linear``.

    Raises:
        RuntimeError: ``weight`` has another shape, or ``label_smoothing`` is out of range.
    """

    weight: Tensor | None
    normalizer: Tensor | None
    temperature: float | Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: object = None,
        logit_softcap: float | None = None,
        temperature: float | Tensor = 1.0,
        logit_scale: float = 1.0,
        compute_dtype: torch.dtype | None = None,
        lse_square_scale: float = 0.0,
        normalizer: Tensor | None = None,
        return_outputs: bool = False,
        memory_limit: int | None = None,
    ) -> None:
        name = type(self).__name__
        if weight is not None and weight.shape != (num_classes,):
            raise RuntimeError(
                f"{name}: weight must have shape {(num_classes,)}, a factor for each class, got {tuple(weight.shape)}"
            )
        if not 0.0 <= label_smoothing <= 1.0:
            raise RuntimeError(f"{name}: label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("normalizer", normalizer, persistent=False)
        self.num_classes = num_classes
        self.out_features = out_features
        rows = math.prod(out_features, start=num_classes)
        self.linear = nn.Linear(in_features, rows, bias=bias, device=device, dtype=dtype)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.options = options
        self.logit_softcap = logit_softcap
        keep_temperature(self, temperature)
        self.logit_scale = logit_scale
        self.compute_dtype = compute_dtype
        self.lse_square_scale = lse_square_scale
        self.return_outputs = return_outputs
        self.memory_limit = memory_limit

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        normalizer: Tensor | None = None,
        grad_weight_sum: Tensor | None = None,
    ) -> Tensor | CrossEntropyOutputs:
        """Return the loss. A ``normalizer`` of the call replaces the module's; ``grad_weight_sum`` gets the gradient of
        ``linear.weight``.

        Raises:
            NotImplementedError: ``grad_weight_sum`` is given, and ``fully_shard`` was applied to this module.
        """
        if grad_weight_sum is not None and is_fully_sharded(self):
            raise NotImplementedError(
                f"{type(self).__name__}: grad_weight_sum is not supported where fully_shard shards this module, "
                f"because it reduces the gradients that autograd passes to linear.weight; leave it out, and use "
                f"set_requires_gradient_sync(False) of FSDP2 to sum up over micro-batches"
            )
        weight: Tensor = self.linear.weight
        bias: Tensor | None = self.linear.bias
        if self.out_features:
            weight = weight.reshape(self.num_classes, *self.out_features, self.linear.in_features)
            bias = None if bias is None else bias.reshape(self.num_classes, *self.out_features)
        return linear_cross_entropy(
            input,
            weight,
            target,
            linear_bias=bias,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
            logit_softcap=self.logit_softcap,
            temperature=self.temperature,
            logit_scale=self.logit_scale,
            compute_dtype=self.compute_dtype,
            lse_square_scale=self.lse_square_scale,
            normalizer=self.normalizer if normalizer is None else normalizer,
            return_outputs=self.return_outputs,
            grad_weight_sum=grad_weight_sum,
            memory_limit=self.memory_limit,
        )

    def extra_repr(self) -> str:
        """Return the representation of PyTorch's module, with the memory limit if there is one."""
        shown = {
            "in_features": self.linear.in_features,
            "num_classes": self.num_classes,
            "out_features": self.out_features,
            "bias": self.linear.bias is not None,
            "reduction": self.reduction,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
        }
        if self.memory_limit is not None:
            shown["memory_limit"] = self.memory_limit
        return ", ".join(f"{name}={value}" for name, value in shown.items())
