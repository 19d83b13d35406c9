# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cosine_embedding_loss`` and ``CosineEmbeddingLoss``: losses of the cosine between two vectors."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import as_float
from nkilib.experimental.loss import cosine_embedding_loss_backward, cosine_embedding_loss_forward
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller, counterpart
from nkilib.torch.dispatch.losses import as_computed
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss

_COEFFICIENTS: Final = 3


_LOSS: Final = rowwise_loss(
    Caller("cosine_embedding_loss", "input1", "embeddings", counterpart("cosine_embedding_loss")),
    (cosine_embedding_loss_forward, cosine_embedding_loss_backward),
    RowInputs(("input1", "input2"), vectors=("target",)),
    options={"margin": 0.0},
    forward_alone=("margin",),
    coefficients=lambda call: _COEFFICIENTS,
)


@hides_unknown
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the cosine embedding loss of each row, with cos the cosine between the rows of both inputs: ``1 - cos``
    where the target is 1, ``max(0, cos - margin)`` where it is -1, else 0.

    The result equals ``torch.nn.functional.cosine_embedding_loss(input1, input2, target, margin,
    reduction=reduction)``, computed in float32 with float32 sums. Tensor values are never read, so the call does not
    wait for the device.

    Args:
        input1, input2: [N, D] or [D], bfloat16, float16, float32 or integers; a tensor [1, D] is used for all rows.
            Each may require grad. 1e-12 is added to the squared norm of each row.
        target: [N], or a scalar tensor if the inputs are [D], of any real type; it has no gradient, as in PyTorch.
        margin: the margin, a number.
        reduction: ``"mean"`` (over rows), ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input1``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the shape of the target, in the dtype that the
        inputs' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(cosine_embedding_loss, unknown)
    tensors = {"input1": input1, "input2": input2, "target": target}
    _LOSS.check(tensors, reduction, inplace, integers=tuple(tensors), bools=tuple(tensors))
    margin = as_float(_LOSS.caller, "margin", margin)
    _check_shapes(input1, input2, target)
    of_pairs = broadcast_shape(_LOSS.caller, {"input1": input1.shape, "input2": input2.shape})
    rows = broadcast_shape(_LOSS.caller, {"rows": of_pairs[:-1], "target": target.shape})
    shape = (*rows, of_pairs[-1])
    first, second = (as_computed(tensor, reduction).expand(shape) for tensor in as_floats([input1, input2]))
    if inplace:
        _LOSS.check_inplace(tensors, first)
    if shape[-1] == 0:  # the cosine of rows without elements is 0
        first, second = pad(first, (0, 1)), pad(second, (0, 1))
    computed = {"input1": first, "input2": second, "target": target.detach().to(torch.float32).expand(rows)}
    return _LOSS(computed, reduction, inplace, margin=margin)


def _check_shapes(input1: Tensor, input2: Tensor, target: Tensor) -> None:
    """Reject numbers of dimensions that PyTorch rejects too, and rows of different lengths.

    Raises:
        RuntimeError: if the check fails.
    """
    caller, dims = _LOSS.caller, target.dim() + 1
    if dims > 2:
        raise RuntimeError(f"{caller}: target must be 0-D or 1-D, got shape {tuple(target.shape)}; flatten the rows")
    if {input1.dim(), input2.dim()} != {dims}:
        raise RuntimeError(
            f"{caller}: a {target.dim()}-D target goes with {dims}-D inputs, got shapes {tuple(input1.shape)} and "
            f"{tuple(input2.shape)}; reshape them"
        )
    if input1.shape[-1] != input2.shape[-1]:
        raise RuntimeError(
            f"{caller}: rows of input1 and input2 must have the same length, got {input1.shape[-1]} and "
            f"{input2.shape[-1]}; expand one of them"
        )


class CosineEmbeddingLoss(LossModule):
    """``torch.nn.CosineEmbeddingLoss``, computed by the kernels.

    Args:
        margin, reduction, inplace: see :func:`cosine_embedding_loss`.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return cosine_embedding_loss(input1, input2, target, self.margin, self.reduction, inplace=self.inplace)
