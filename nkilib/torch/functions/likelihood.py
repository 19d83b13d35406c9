# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses from log-likelihoods, each with its module:

- ``nll_loss``, ``NLLLoss``: the negative log-likelihood of classes, from log-probabilities;
- ``gaussian_nll_loss``, ``GaussianNLLLoss``: the negative log-likelihood of numbers, from mean and
  variance;
- ``poisson_nll_loss``, ``PoissonNLLLoss``: the negative log-likelihood of counts, from a rate;
- ``kl_div``, ``KLDivLoss``: the Kullback-Leibler divergence of distributions.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_int64, check_flags, check_reduction, hides_unknown, refuse_unknown
from nkilib.core.rows.checks import LEAST_ARGUMENT_OF_LOG
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.layout import rows_shape, unviewed
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, Call, Input, Output, Shape
from nkilib.torch.functions.cross_entropy.checks import check_indices, check_weight
from nkilib.torch.losses.checks import BATCHMEAN, check_reduction_or_batchmean, finite_number
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.indexed import CLASS_WEIGHT, check_inplace_scores, check_range, indexed_loss, kernel_target
from nkilib.torch.losses.modules import LossModule, WeightedLossModule
from nkilib.torch.losses.outputs import as_computed

NLL_LOSS: Final = Caller("nll_loss", "input", "log-probabilities", "torch.nn.functional.nll_loss")


def _classes(call: Call) -> int:
    return int(call.first.shape[1])


def _check_classes(call: Call) -> None:
    check_range(str(NLL_LOSS), call.tensor("target").reshape(-1), call.options["ignore_index"], _classes(call))


def _targets(call: Call) -> dict[str, Any]:
    target, ignore_index = kernel_target(call.tensor("target"), call.options["ignore_index"], _classes(call))
    return {"targets_hbm": target.detach(), "ignore_index": ignore_index}


def _as_target(call: Call) -> Shape:
    return tuple(call.tensor("target").shape)


# The input is [N, C] or [N, C, d1, ...], the target [N] or [N, d1, ...].
_NLL_DERIVATIVE: Final = indexed_loss(
    NLL_LOSS,
    inputs=(Input("input", dtypes=FLOAT_DTYPES), Input("target", keyword="targets_hbm"), CLASS_WEIGHT),
    options={"ignore_index": -100, "reduction": "mean"},
    losses=_as_target,
    saved=(Output("total_weight", shape=lambda call: (1,)),),
    backward=("input", "target", "grad_loss", "total_weight", "class_weight"),
    arguments=_targets,
    check_values=_check_classes,
)


def _check_nll_arguments(input: Tensor, target: Tensor, weight: Tensor | None, reduction: Any) -> None:
    caller = NLL_LOSS
    tensors = {caller.input: input, "target": target, "weight": weight}
    checks.check_tensors(caller, tensors, optional=("weight",))
    check_reduction(caller, reduction)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, input, {"target": target, "weight": weight})
    if input.dim() == 0:
        raise ValueError(f"{caller}: Expected 1 or more dimensions (got 0); the classes are one of them")
    check_indices(caller, tuple(input.shape), rows_shape(input, 1), target, takes_probabilities=False)
    checks.check_tile_dtype(caller, input)
    check_weight(caller, weight, input.shape[min(1, input.dim() - 1)], soft=False)


@hides_unknown
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the negative log-likelihood, ``-weight[t] * input[t]``, with the kernels of
    :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.nll_loss(input, target, weight, ignore_index=ignore_index,
    reduction=reduction)``, in float32. Only the input elements at the targets are read; the backward writes the
    gradient once. Tensor values are never read, so the call does not wait for the device; only on the CPU are targets
    checked for their range.

    Args:
        input: log-probabilities, bfloat16, float16 or float32: [C], [N, C] or [N, C, d1, ...].
        target: class indices of any integer type, each in [0, C) or ``ignore_index``, of the shape of ``input`` without
            the classes.
        weight: [C] floating, a factor for each class, used in float32; None means 1.
        ignore_index: class index of ignored positions, which have loss 0 and gradient 0.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored, ``"sum"`` does
            not, ``"none"`` returns one loss per position.
        inplace: the backward writes the gradient over the memory of ``input``, which must be contiguous and must not be
            used afterwards: the backward of an operation that needs it, such as log-softmax, raises an error.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the shape of the target, in the dtype of the
        input. If every position is ignored the mean is NaN and the gradient 0, as in PyTorch.

    Raises:
        TypeError: an argument has the wrong Python type, or the input is float64.
        ValueError: unknown ``reduction``; batch sizes differ; no dimension; ``ignore_index`` does not fit 64 bits;
            ``inplace`` where the kernel would get a copy.
        RuntimeError: incompatible shapes or devices, as in PyTorch; ``weight`` requires grad; ``inplace`` with a leaf
            that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        IndexError: on the CPU, a target out of range.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); an integer input; forward-mode
            differentiation.
        AssertionError: more than a few million positions in one call.
    """
    if unknown:
        refuse_unknown(nll_loss, unknown)
    _check_nll_arguments(input, target, weight, reduction)
    options = {"ignore_index": as_int64(NLL_LOSS, "ignore_index", ignore_index), "reduction": reduction}
    computed = as_computed(input, reduction)
    check_inplace_scores(NLL_LOSS, input, computed, inplace, {"target": target, "weight": weight})
    has_rows = computed.dim() > 1
    rows, classes = (computed, target) if has_rows else (computed.unsqueeze(0), target.reshape(1))
    class_weight = None if weight is None else weight.to(torch.float32)
    loss, _ = _NLL_DERIVATIVE.apply(inplace, rows, classes, class_weight, **options)
    reduced: Tensor = loss
    return reduced if has_rows or reduction != "none" else unviewed(reduced.reshape(()))


class NLLLoss(WeightedLossModule):
    """Negative log-likelihood as a module, in place of ``torch.nn.NLLLoss``: :func:`nll_loss`, computed by the kernels.

    Call the module with ``(input, target)``: log-probabilities [C], [N, C] or [N, C, d1, ...], and class indices of
    that shape without C. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the shape of the target.
    The weight is a buffer: it moves with the module to a device or dtype, and is in the state dict.

    Args:
        weight: a factor for each class, [C], floating, used in float32; None means 1.
        ignore_index: the class index of positions that have loss 0 and gradient 0.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored, ``"sum"`` does
            not, ``"none"`` returns one loss per position.
        inplace: the backward writes the gradient over the memory of ``input``, which must be contiguous and must not be
            used afterwards.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(weight, reduction, inplace)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return nll_loss(input, target, self.weight, self.ignore_index, self.reduction, inplace=self.inplace)


_NEGATIVE_VARIANCE: Final = "gaussian_nll_loss: var has negative entry/entries; pass variances, which are squares"


def _check_variances(call: Call) -> None:
    if bool((call.tensor("var") < 0).any()):
        raise ValueError(_NEGATIVE_VARIANCE)


GAUSSIAN_NLL_LOSS: Final = elementwise_loss(
    "gaussian_nll_loss",
    "means",
    tensors=("input", "target", "var"),
    integers=("input", "target"),
    options={"full": False, "eps": 1e-6},
    check_values=_check_variances,
    is_float32_under_autocast=False,
)


def _least_of_log(caller: Caller, name: str, value: Any) -> float:
    """Return an option such as ``eps``, which bounds a logarithm's argument or is added to it, as a Python float.

    Raises:
        TypeError: the value is not a number.
        ValueError: the value is not finite, or less than 2^-64, the least argument for which NKI documents the
            logarithm.
    """
    number = finite_number(caller, name, value)
    if number < LEAST_ARGUMENT_OF_LOG:
        raise ValueError(
            f"{caller}: {name} must be at least 2^-64, of which the engines have a logarithm, got {value}; use "
            f"{caller.instead}"
        )
    return number


def _variances(input: Tensor, var: Any) -> Any:
    """Return the argument ``var`` as a tensor with as many dimensions as the input.

    An argument that is neither a float nor a tensor is returned unchanged; later checks reject it.

    Raises:
        ValueError: a float is negative, or PyTorch accepts no tensor of this shape.
    """
    if isinstance(var, float):
        if var < 0.0:
            raise ValueError(_NEGATIVE_VARIANCE)
        return input.new_full(input.shape, var)
    if not isinstance(var, Tensor) or var.shape == input.shape:
        return var
    if var.shape == input.shape[:-1]:
        return var.unsqueeze(-1)
    if var.dim() == input.dim():
        differing = [own for whole, own in zip(input.shape, var.shape, strict=True) if whole != own]
        if sum(differing) == 1:  # one of them, of extent 1
            return var
    raise ValueError(
        f"gaussian_nll_loss: var is of incorrect size: it must have the shape of input, {tuple(input.shape)}, lack the "
        f"last dimension, or have one of extent 1, got {tuple(var.shape)}"
    )


@hides_unknown
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the negative log-likelihood ``(log v + (x - t)^2 / v) / 2`` of targets t under normal distributions of
    means x and variances ``v = max(var, eps)``, with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.gaussian_nll_loss(input, target, var, full=full, eps=eps,
    reduction=reduction)``, computed in float32 with float32 sums. Values are checked on the CPU only.

    Args:
        input: means, bfloat16, float16, float32 or integers, of any shape.
        target: targets in one of these types or of integers, of a shape that broadcasts with the input's. It may
            require grad.
        var: variances: a number; or a tensor of the shape of the input, of that shape without the last dimension, or of
            that shape with extent 1 in one dimension. It may require grad; its gradient is that of v, even where v is
            ``eps``.
        full: add ``log(2 pi) / 2``.
        eps: the lower bound of the variances in the computation, at least 2^-64.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a variance of another shape; a negative variance, on the CPU; ``eps`` less
            than 2^-64; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; complex numbers, or integers as ``var``; ``inplace`` with a leaf
            that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(gaussian_nll_loss, unknown)
    caller = GAUSSIAN_NLL_LOSS.caller
    checks.check_tensors(caller, {"input": input})  # whose shape the variances take
    tensors = {"input": input, "target": target, "var": _variances(input, var)}
    GAUSSIAN_NLL_LOSS.check(tensors, reduction, inplace)
    check_flags(caller, full=full)
    options = {"full": full, "eps": _least_of_log(caller, "eps", eps)}
    return GAUSSIAN_NLL_LOSS(tensors, reduction, inplace, **options)


class GaussianNLLLoss(LossModule):
    """Negative log-likelihood of normal distributions as a module, in place of ``torch.nn.GaussianNLLLoss``:
    :func:`gaussian_nll_loss`, computed by the kernels.

    Call the module with ``(input, target, var)``: means of any shape, targets of a shape that broadcasts with the
    input's, and variances of the shape of the input, of that shape without the last dimension or with extent 1 in one
    dimension, or a number. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast shape. The
    module keeps its options, and has neither parameters nor buffers.

    Args:
        full: add the constant ``log(2 pi) / 2`` to each loss.
        eps: the lower bound of the variances in the computation, at least 2^-64.
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(
        self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean", inplace: bool = False
    ) -> None:
        super().__init__(reduction, inplace)
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        """Return the loss."""
        return gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction, inplace=self.inplace)


POISSON_NLL_LOSS: Final = elementwise_loss(
    "poisson_nll_loss",
    "rates or their logarithms",
    integers=("input", "target"),
    bools=("input", "target"),
    options={"log_input": True, "full": False, "eps": 1e-8},
    takes_integers_alone=True,
)


@hides_unknown
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the negative log-likelihood of counts t under Poisson distributions, with the kernels of
    :mod:`nkilib.experimental.loss`: ``exp(x) - t x`` for log rates x, or ``x - t log(x + eps)`` for rates x without
    ``log_input``.

    The result equals ``torch.nn.functional.poisson_nll_loss(input, target, log_input=log_input, full=full, eps=eps,
    reduction=reduction)``, computed in float32 with float32 sums. Tensor values are never read, so the call does not
    wait for the device.

    Args:
        input: the rate or its logarithm, bfloat16, float16, float32 or integers, of any shape.
        target: counts, in one of these types or of integers, of a shape that broadcasts with the input's. It may
            require grad.
        log_input: whether the input is the logarithm of the rate.
        full: whether to add Stirling's estimate of ``log t!`` where t > 1.
        eps: the number that is added to a rate before its logarithm is taken, at least 2^-64: NKI documents no
            logarithm of smaller numbers.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``eps`` less than 2^-64; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(poisson_nll_loss, unknown)
    caller = POISSON_NLL_LOSS.caller
    tensors = {"input": input, "target": target}
    POISSON_NLL_LOSS.check(tensors, reduction, inplace)
    check_flags(caller, log_input=log_input, full=full)
    options = {"log_input": log_input, "full": full, "eps": _least_of_log(caller, "eps", eps)}
    return POISSON_NLL_LOSS(tensors, reduction, inplace, **options)


class PoissonNLLLoss(LossModule):
    """Negative log-likelihood of Poisson distributions as a module, in place of ``torch.nn.PoissonNLLLoss``:
    :func:`poisson_nll_loss`, computed by the kernels.

    Call the module with ``(log_input, target)``: rates or their logarithms, of any shape, and counts of a shape that
    broadcasts with the first tensor's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the
    broadcast shape. The module keeps its options, and has neither parameters nor buffers.

    Args:
        log_input: whether the first tensor has the logarithms of the rates.
        full: add Stirling's estimate of ``log t!`` where the count t is greater than 1.
        eps: the number that is added to a rate before its logarithm is taken, at least 2^-64; without effect with
            ``log_input``.
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        inplace: the backward writes the gradient over the memory of the first tensor, which must not be used
            afterwards.
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(reduction, inplace)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        """Return the loss; the first argument is the rate or its logarithm, with PyTorch's name."""
        return poisson_nll_loss(
            log_input, target, self.log_input, self.full, self.eps, self.reduction, inplace=self.inplace
        )


KL_DIV: Final = elementwise_loss(
    "kl_div",
    "log-probabilities",
    options={"log_target": False, "reduction": "mean"},
    wanted=("input", "target"),
)


@hides_unknown
def kl_div(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    log_target: bool = False,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the elementwise Kullback-Leibler divergence with the kernels of :mod:`nkilib.experimental.loss`.

    The loss is ``target * (log(target) - input)``, or with ``log_target`` ``exp(target) * (target - input)``. It equals
    ``torch.nn.functional.kl_div(input, target, reduction=reduction, log_target=log_target)``, computed in float32 with
    float32 sums. Tensor values are never read, so the call does not wait for the device.

    Args:
        input: log-probabilities, bfloat16, float16 or float32, of any shape.
        target: probabilities or log-probabilities, in one of these types, of a shape that broadcasts with the input's.
            It may require grad.
        reduction: ``"mean"`` (over elements), ``"batchmean"`` (the sum divided by ``input.size(0)``), ``"sum"`` or
            ``"none"``.
        log_target: whether the target holds log-probabilities.
        inplace: the backward writes the gradient over the memory of ``input``, which must be dense, neither broadcast
            nor cast, and must not be used afterwards: the backward of an operation that needs it, such as log-softmax,
            raises an error.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``inplace`` where the kernel would get a copy.
        RuntimeError: incompatible shapes or devices; an integer or complex tensor, as in PyTorch; ``inplace`` with a
            leaf that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(kl_div, unknown)
    caller = KL_DIV.caller
    tensors = {"input": input, "target": target}
    check_reduction_or_batchmean(caller, reduction)
    kernel_reduction = "sum" if reduction == BATCHMEAN else reduction
    KL_DIV.check(tensors, kernel_reduction, inplace)
    check_flags(caller, log_target=log_target)
    batch = input.shape[0] if input.dim() > 0 else 1
    loss = KL_DIV(tensors, kernel_reduction, inplace, log_target=log_target)
    return loss / batch if reduction == BATCHMEAN else loss


class KLDivLoss(LossModule):
    """Kullback-Leibler divergence as a module, in place of ``torch.nn.KLDivLoss``: :func:`kl_div`, computed by the
    kernels.

    Call the module with ``(input, target)``: log-probabilities of any shape, and probabilities of a shape that
    broadcasts with the input's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast
    shape. The module keeps its options, and has neither parameters nor buffers.

    Args:
        reduction: ``"mean"`` over the elements, ``"batchmean"`` (the sum divided by ``input.size(0)``),
            ``"sum"``, or ``"none"``: a term for each element.
        log_target: whether the target has log-probabilities, too.
        inplace: the backward writes the gradient over the memory of ``input``, which must be dense, neither broadcast
            nor cast, and must not be used afterwards.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return kl_div(input, target, self.reduction, self.log_target, inplace=self.inplace)
