# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_token_scores``: log-probability, entropy and further scores of tokens, from hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.experimental.loss.linear_cross_entropy.host.score_names import checked_outputs
from nkilib.torch.dispatch.autocast import autocast_dtype
from nkilib.torch.dispatch.layout import as_rows
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.checks import (
    check_arguments,
    check_kernel_arguments,
    checked_product,
    checked_recipe,
)
from nkilib.torch.functions.linear_cross_entropy.one_launch import wanted_gradients
from nkilib.torch.functions.linear_cross_entropy.operators import DTYPES, Product
from nkilib.torch.functions.linear_token_scores.autograd import DERIVATIVE
from nkilib.torch.functions.linear_token_scores.checks import (
    OF_WEIGHT,
    check_kernels_take,
    check_target,
)
from nkilib.torch.functions.linear_token_scores.operators import FORWARD
from nkilib.torch.functions.linear_token_scores.operators import LINEAR_TOKEN_SCORES as _CALLER
from nkilib.torch.functions.linear_token_scores.parts import PlacedArguments, plain_arguments
from nkilib.torch.functions.linear_token_scores.results import LinearTokenScores, ScoreResults, WantedScores
from nkilib.torch.functions.linear_token_scores.shards import vocab_parallel_scores
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards, group_place, shards_of_ranks
from nkilib.torch.functions.vocab_parallel_linear.functional import shard_operands


def linear_token_scores(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    outputs: Iterable[str] = ("entropy",),
    compute_dtype: torch.dtype | None = None,
    grad_weight_sum: Tensor | None = None,
    num_classes: int | None = None,
    shard_sizes: Sequence[int] | None = None,
) -> LinearTokenScores:
    """Log-probability of each target and further scores of each position, from hidden states and the output layer.

    Reinforcement learning and preference optimization take these. It equals, with z = softcap(logit_scale *
    linear(input, linear_weight, linear_bias)) / temperature in float32, and p = z.softmax(-1)::

        logprob = z.log_softmax(-1).gather(-1, target[..., None])[..., 0]
        entropy = -(p * p.log()).sum(-1)
        lse = z.logsumexp(-1)
        argmax = z.argmax(-1)
        log_sum_squares = p.square().sum(-1).log()
        mean_logit = z.mean(-1)

    in one launch forward and one backward, without logits in memory and without a rounding of logits. The gradients of
    ``input``, ``linear_weight`` and ``linear_bias`` have the types of these tensors, come from float32 sums and are
    rounded once; one that nobody asks for is not computed. No value is looked at, so nothing waits for the device; on
    the CPU alone targets are checked for their range.

    A class that a bias of -inf masks stays masked under a cap, adds nothing to entropy and ``log_sum_squares``, and
    is left out of ``mean_logit``. (TRL's function gives NaN and -inf there.)

    Args:
        input: [..., D], bfloat16, float16 or float32.
        linear_weight: [V, D], bfloat16, float16 or float32; with ``group`` the rows of this rank, or a DTensor.
        target: [...] of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without the
            features; or [..., K], up to 64 ids of each position, which may be equal: ``logprob`` is [..., K] then.
        group: the ranks that share the vocabulary, as for :func:`nkilib.torch.vocab_parallel_linear_cross_entropy`.
            None: the weight has all classes. DTensors have their own: a replicated ``input`` with a weight of
            ``Shard(0)`` on one dimension of the mesh is a vocabulary in parts; a plain ``input`` gathers a weight that
            is a DTensor, as FSDP2 would, and averages its gradient over the ranks.
        linear_bias: [V], of the type of the operands or float32; -inf masks a class.
        ignore_index: target of positions that do not count, as those of the prompt. Their ``logprob`` is 0, and what
            comes upstream of it is not looked at; the other scores are computed, and have gradients.
        temperature: from 1e-6 to 1e6, divides the logits, after the cap: that of the samples, as a rule. A number, a
            constant of the compiled kernel, as ``logit_scale``: each new value compiles anew.
        logit_scale: from 1e-6 to 1e6, multiplies the logits, before the cap.
        logit_softcap: c from 1e-30 to 1e30 makes c * tanh(logits / c) of the logits; None leaves them.
        outputs: names of the scores beside ``logprob``: ``"entropy"``, ``"lse"``, ``"argmax"``, ``"log_sum_squares"``
            and ``"mean_logit"``. Gradients flow through ``logprob``, ``entropy`` and ``lse``.
        compute_dtype: bfloat16, float16 or float32, of the products. None: that of autocast if it is on, else that of
            ``input``, to which a ``linear_weight`` of another type is rounded.
        grad_weight_sum: [V, D] float32, contiguous: the backward adds the gradient of ``linear_weight`` to it,
            unrounded, and hands none on.
        num_classes, shard_sizes: which classes the ranks of ``group`` have, as there.

    Returns:
        The scores, of the shape of the positions, float32 but for ``argmax``; None for what ``outputs`` lacks. With
        ``group`` or a sharded vocabulary they are the same on every rank.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: an unknown name in ``outputs``; batch sizes differ; a number out of range; classes of ranks without
            a group, or a group beside a DTensor; ``grad_weight_sum`` does not fit. On the CPU, on all ranks: they do
            not see the same shards, options or number of target ids of a position.
        RuntimeError: shapes, types or devices do not fit.
        IndexError: on the CPU, a target out of range.
        NotImplementedError: another device; a number of dimensions, features or classes that no kernel takes; DTensors
            placed otherwise; a derivative in forward mode, or a second one.
    """
    names = checked_outputs(_CALLER, outputs)
    options, product = checked_recipe(
        _CALLER,
        linear_token_scores,
        temperature,
        logit_scale,
        ignore_index=ignore_index,
        logit_softcap=logit_softcap,
    )
    given = LinearArguments(input, linear_weight, target, linear_bias, None, "none", None, grad_weight_sum)
    placed = plain_arguments(_CALLER, given, group, num_classes, shard_sizes)
    checked = check_target(_CALLER, placed.given)
    shards = _shards(placed)
    check_kernels_take(_CALLER, checked, None if shards is None else shards.num_classes)
    check_arguments(_CALLER, checked, None)
    given = placed.given
    product = checked_product(_CALLER, given, product, _product_dtype(given, compute_dtype))
    check_kernel_arguments(_CALLER, given, product)
    wanted = WantedScores(*(name in names for name in ("argmax", "entropy", "log_sum_squares", "mean_logit")))
    if shards is None:
        results = _scores(given, options, product, wanted)
    else:
        operands = shard_operands(given, shards)._replace(target=_target_of_rows(given))
        results = vocab_parallel_scores(_CALLER, operands, options, product, shards, placed.group, wanted)
    return _returned(results, names, tuple(given.target.shape), tuple(given.input.shape[:-1]))


def _product_dtype(given: LinearArguments, compute_dtype: torch.dtype | None) -> torch.dtype | None:
    """The type of the products, where the caller has none: that of the input for operands of unlike types.

    Autocast has its own, and what no kernel takes is refused later.
    """
    input, weight = given.input, given.linear_weight
    is_decided = compute_dtype is not None or autocast_dtype(input.device) is not None
    if is_decided or input.dtype == weight.dtype or not {input.dtype, weight.dtype} <= set(DTYPES):
        return compute_dtype
    return input.dtype


def _shards(placed: PlacedArguments) -> VocabularyShards | None:
    """None where this rank has all classes."""
    if not placed.is_spread or placed.given.linear_weight.dim() < 1:
        return None
    rows, place = placed.given.linear_weight.shape[0], group_place(_CALLER, placed.group)
    return shards_of_ranks(OF_WEIGHT, rows, place, placed.num_classes, placed.shard_sizes)


def _target_of_rows(given: LinearArguments) -> Tensor:
    """[N], or of K ids of each position [N, K]."""
    target = given.target
    return target.reshape(-1, target.shape[-1]) if target.dim() == given.input.dim() else target.reshape(-1)


def _scores(given: LinearArguments, options: LossOptions, product: Product, wanted: WantedScores) -> ScoreResults:
    """Of a weight with all classes."""
    rows, linear_weight, target = as_rows(given.input, -1), given.linear_weight, _target_of_rows(given)
    bias = None if given.linear_bias is None else given.linear_bias.to(torch.float32)
    gradients = wanted_gradients(rows, linear_weight, bias)
    summed = given.grad_weight_sum if gradients is not None and gradients.grad_weight_wanted else None
    keywords = FORWARD.keywords_from(options, product, wanted)
    return ScoreResults(*DERIVATIVE.apply(False, rows, linear_weight, target, bias, summed, **keywords))


def _returned(
    results: ScoreResults, names: tuple[str, ...], of_target: tuple[int, ...], shape: tuple[int, ...]
) -> LinearTokenScores:
    """The scores that are asked for, in the shape of the positions; log-probabilities in that of the targets."""

    def score(name: str) -> Tensor | None:
        return getattr(results, name).reshape(shape) if name in names else None

    argmax = score("argmax")
    return LinearTokenScores(
        results.logprob.reshape(of_target),
        score("entropy"),
        score("lse"),
        None if argmax is None else argmax.to(torch.int64),
        score("log_sum_squares"),
        score("mean_logit"),
    )
