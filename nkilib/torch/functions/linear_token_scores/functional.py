# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_token_scores``: log-probability, entropy and other scores of tokens, from hidden states.

The function returns :class:`LinearTokenScores`. DTensor arguments are converted to plain tensors (:mod:`.placement`),
and arguments that no kernel takes are rejected. One rank computes the scores alone, or a group together
(:mod:`.shards`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, hides_unknown, refuse_unknown, values_of
from nkilib.experimental.loss.linear.launch import IDS_MAX
from nkilib.torch.dispatch.checks import Caller, autocast_dtype
from nkilib.torch.dispatch.layout import as_rows
from nkilib.torch.functions.cross_entropy.checks import LossKeywords
from nkilib.torch.functions.linear_cross_entropy.checks import (
    LinearArguments,
    check_arguments,
    check_kernel_arguments,
    checked_product,
    checked_recipe,
    reason_for_reference,
)
from nkilib.torch.functions.linear_cross_entropy.operators import DTYPES, Product, wanted_gradients
from nkilib.torch.functions.linear_token_scores.operators import DERIVATIVE, FORWARD, ScoreResults, WantedScores
from nkilib.torch.functions.linear_token_scores.operators import LINEAR_TOKEN_SCORES as _CALLER
from nkilib.torch.functions.linear_token_scores.placement import plain_arguments
from nkilib.torch.functions.linear_token_scores.shards import vocab_parallel_scores
from nkilib.torch.functions.vocab_parallel.linear_placement import shard_operands
from nkilib.torch.losses.outputs import in_shape_of_rows
from nkilib.torch.losses.temperatures import number_and_tensor


class LinearTokenScores(NamedTuple):
    """The scores of each position, of the shape of the targets, float32 except for ``argmax``. A score that is not
    requested is None.

    z denotes the logits after scale, cap and temperature, and p their softmax. Ignored positions have all scores except
    the log-probability.

    Attributes:
        logprob: log-probability of the target in nats, at most 0; 0 where it is ignored. Differentiable.
        entropy: the entropy of the softmax, in nats. Differentiable.
        lse: log-sum-exp of the logits, in nats. Differentiable.
        argmax: int64, the first class with the largest logit; V, which is no class, in a row that holds a NaN.
        log_sum_squares: log of the sum of p^2, at most 0.
        mean_logit: the mean of z over the classes that no bias of -inf masks.
    """

    logprob: Tensor
    entropy: Tensor | None
    lse: Tensor | None
    argmax: Tensor | None
    log_sum_squares: Tensor | None
    mean_logit: Tensor | None


def _check_target(caller: Caller, arguments: LinearArguments) -> LinearArguments:
    """Check that the targets are integers, and that there are 1 to 64 ids if the positions have several ids each.

    Args:
        caller: the function that error messages name.
        arguments: the arguments of the call.

    Returns:
        The arguments; of several ids of a position only the first, because later checks expect one id per position.

    Raises:
        RuntimeError: the targets are not integers.
        ValueError: a position has no ids, or more than 64.
    """
    target = arguments.target
    if target.is_floating_point():
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; probabilities have no "
            f"single class to score"
        )
    if target.dim() == 0 or target.dim() != arguments.input.dim():
        return arguments
    if not 1 <= target.shape[-1] <= IDS_MAX:
        raise ValueError(
            f"{caller}: there may be 1 to {IDS_MAX} target ids of a position, got target of shape "
            f"{tuple(target.shape)} for positions of shape {tuple(arguments.input.shape[:-1])}; call it for parts of "
            f"them"
        )
    return replace(arguments, target=target[..., 0])


def _check_kernels_take(caller: Caller, arguments: LinearArguments, classes: int | None = None) -> None:
    """Check that a kernel computes the scores of these arguments.

    Args:
        caller: the function that error messages name.
        arguments: the arguments of the call.
        classes: the number of classes of all ranks; None means those of the weight.

    Raises:
        NotImplementedError: an unsupported number of dimensions, features or classes.
    """
    reason = reason_for_reference(arguments, classes) if arguments.linear_weight.dim() > 1 else None
    if reason is not None:
        raise NotImplementedError(
            f"{caller}: not supported where {reason}; pass the logits of torch.nn.functional.linear to "
            f"nkilib.torch.token_scores"
        )


def _product_dtype(arguments: LinearArguments, compute_dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of the matrix product: ``compute_dtype`` unless that is None.

    If it is None, the result is the dtype of the input if the dtypes of the operands differ and autocast is off. Else
    it is None, which stands for autocast's dtype if autocast is on, and for the operands' dtype if it is off.
    """
    input, weight = arguments.input, arguments.linear_weight
    is_decided = compute_dtype is not None or autocast_dtype(input.device) is not None
    if is_decided or input.dtype == weight.dtype or not {input.dtype, weight.dtype} <= set(DTYPES):
        return compute_dtype
    return input.dtype


def _target_of_rows(arguments: LinearArguments) -> Tensor:
    target = arguments.target
    return target.reshape(-1, target.shape[-1]) if target.dim() == arguments.input.dim() else target.reshape(-1)


def _scores(arguments: LinearArguments, options: LossKeywords, product: Product, wanted: WantedScores) -> ScoreResults:
    rows, linear_weight, target = as_rows(arguments.input, -1), arguments.linear_weight, _target_of_rows(arguments)
    bias = None if arguments.linear_bias is None else arguments.linear_bias.to(torch.float32)
    temperatures = arguments.temperatures(_CALLER)
    gradients = wanted_gradients(rows, linear_weight, bias)
    summed = arguments.grad_weight_sum if gradients is not None and gradients.grad_weight_wanted else None
    keywords = FORWARD.taken({**options, **values_of(product, wanted)})
    return ScoreResults(*DERIVATIVE.apply(False, rows, linear_weight, target, bias, summed, temperatures, **keywords))


def _returned(
    results: ScoreResults, names: tuple[str, ...], of_target: tuple[int, ...], shape: tuple[int, ...]
) -> LinearTokenScores:
    """Return the log-probabilities and the scores named in ``names``.

    Args:
        results: the results with one number per row.
        names: the requested scores.
        of_target: the shape of the targets, to which the log-probabilities are reshaped.
        shape: the shape of the positions, to which the scores are reshaped.
    """

    def score(name: str) -> Tensor | None:
        return in_shape_of_rows(getattr(results, name), shape) if name in names else None

    argmax = score("argmax")
    return LinearTokenScores(
        in_shape_of_rows(results.logprob, of_target),
        score("entropy"),
        score("lse"),
        None if argmax is None else argmax.to(torch.int64),
        score("log_sum_squares"),
        score("mean_logit"),
    )


@hides_unknown
def linear_token_scores(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    temperature: float | Tensor = 1.0,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    outputs: Iterable[str] = ("entropy",),
    compute_dtype: torch.dtype | None = None,
    grad_weight_sum: Tensor | None = None,
    num_classes: int | None = None,
    shard_sizes: Sequence[int] | None = None,
    **unknown: Unpack[NoKeywords],
) -> LinearTokenScores:
    """Compute the log-probability of each target and further scores of each position, from hidden states and the output
    layer.

    Reinforcement learning and preference optimization use these scores. Let z = softcap(logit_scale * linear(input,
    linear_weight, linear_bias)) / temperature in float32, where softcap is the cap that ``logit_softcap`` describes,
    and p = z.softmax(-1). The scores equal::

        logprob = z.log_softmax(-1).gather(-1, target[..., None])[..., 0]
        entropy = -(p * p.log()).sum(-1)
        lse = z.logsumexp(-1)
        argmax = z.argmax(-1)
        log_sum_squares = p.square().sum(-1).log()
        mean_logit = z.mean(-1)

    The forward is one launch and the backward another. Logits are neither stored in memory nor rounded. The gradients
    of ``input``, ``linear_weight`` and ``linear_bias`` have the dtypes of these tensors, are accumulated in float32 and
    rounded once; a gradient that is not needed is not computed. Tensor values are never read, so the call does not wait
    for the device. The exception is the CPU, where the range of targets is checked.

    A class that a bias of -inf masks stays masked under a cap, adds nothing to entropy and ``log_sum_squares``, and is
    excluded from ``mean_logit``. (TRL's function gives NaN and -inf there.)

    Args:
        input: [..., D], bfloat16, float16 or float32.
        linear_weight: [V, D], bfloat16, float16 or float32; with ``group`` the rows of this rank, or a DTensor.
        target: [...] of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without the
            features; or [..., K], up to 64 ids of each position, which may be equal: ``logprob`` then is [..., K].
        group: the ranks that share the vocabulary, see :func:`nkilib.torch.vocab_parallel_linear_cross_entropy`. None:
            the weight has all classes. DTensors define their own group: a replicated ``input`` with a weight of
            ``Shard(0)`` on one dimension of the mesh is a sharded vocabulary; with a plain ``input``, a weight that is
            a DTensor is gathered, as FSDP2 would, and its gradient is averaged over the ranks.
        linear_bias: [V], of the type of the operands or float32; used in float32, without rounding; -inf masks a class.
        ignore_index: target of ignored positions, such as those of the prompt. Their ``logprob`` is 0, and its upstream
            gradient is not read; the other scores are computed, and have gradients.
        temperature: divides the logits after the cap, usually the temperature of the samples; from 1e-6 to 1e6. A
            number is a constant of the compiled kernel, like ``logit_scale``: each new value compiles a new kernel. A
            tensor has one temperature for all positions or one per position, and other values need no compilation: see
            :func:`nkilib.torch.cross_entropy`.
        logit_scale: multiplies the logits before the cap; from 1e-6 to 1e6.
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c); None applies no cap.
        outputs: names of the scores to return beside ``logprob``: ``"entropy"``, ``"lse"``, ``"argmax"``,
            ``"log_sum_squares"`` and ``"mean_logit"``. Gradients flow through ``logprob``, ``entropy`` and ``lse``.
        compute_dtype: bfloat16, float16 or float32, the dtype of the products. None: autocast's dtype if autocast is
            on, else that of ``input``, to which a ``linear_weight`` of another dtype is rounded.
        grad_weight_sum: [V, D] float32, contiguous: the backward adds the gradient of ``linear_weight`` to it,
            unrounded, and returns no gradient for ``linear_weight``.
        num_classes, shard_sizes: the classes of the ranks of ``group``, see
            :func:`nkilib.torch.vocab_parallel_linear_cross_entropy`.

    Returns:
        The scores, of the shape of the positions, float32 except for ``argmax``; None for those that ``outputs`` does
        not name. With ``group`` or a sharded vocabulary they are the same on every rank.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: an unknown name in ``outputs``; batch sizes differ; a number out of range; ``num_classes`` or
            ``shard_sizes`` without a group, or a group with a DTensor; ``grad_weight_sum`` cannot be used. On the CPU,
            raised on all ranks: the ranks do not see the same shards, options or number of target ids of a position.
        RuntimeError: incompatible shapes, dtypes or devices.
        IndexError: on the CPU, a target out of range.
        NotImplementedError: an unsupported device; a number of dimensions, features or classes that no kernel takes;
            other DTensor placements; forward-mode or second-order differentiation.
    """
    if unknown:
        refuse_unknown(linear_token_scores, unknown)
    from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
        checked_outputs,  # loading it takes long
    )

    names = checked_outputs(_CALLER, outputs)
    number, temperatures = number_and_tensor(temperature)
    options, product = checked_recipe(
        _CALLER,
        linear_token_scores,
        number,
        logit_scale,
        ignore_index=ignore_index,
        logit_softcap=logit_softcap,
    )
    arguments = LinearArguments(
        input, linear_weight, target, linear_bias, None, "none", None, grad_weight_sum, temperatures
    )
    placed = plain_arguments(_CALLER, arguments, group, num_classes, shard_sizes)
    checked = _check_target(_CALLER, placed.arguments)
    shards = placed.shards()
    _check_kernels_take(_CALLER, checked, None if shards is None else shards.num_classes)
    check_arguments(_CALLER, checked, None)
    arguments = placed.arguments
    product = checked_product(_CALLER, arguments, product, _product_dtype(arguments, compute_dtype))
    check_kernel_arguments(_CALLER, arguments, product)
    wanted = WantedScores(*(name in names for name in ("argmax", "entropy", "log_sum_squares", "mean_logit")))
    if shards is None:
        results = _scores(arguments, options, product, wanted)
    else:
        operands = shard_operands(_CALLER, arguments, shards)._replace(target=_target_of_rows(arguments))
        results = vocab_parallel_scores(_CALLER, operands, options, product, shards, placed.group, wanted)
    return _returned(results, names, tuple(arguments.target.shape), tuple(arguments.input.shape[:-1]))
