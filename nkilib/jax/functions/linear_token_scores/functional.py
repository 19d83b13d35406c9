# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_token_scores``: log-probability, entropy and further scores of tokens, from hidden states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import jax

from nkilib.base.lnc import launch_cores, library_grid
from nkilib.experimental.loss.cross_entropy.options import Wanted
from nkilib.experimental.loss.linear_cross_entropy.host.score_names import OUTPUTS, checked_outputs
from nkilib.experimental.loss.linear_cross_entropy.shared.options import IDS_MAX
from nkilib.jax.dispatch.launch import simulator_options
from nkilib.jax.functions.cross_entropy.checks import check_range, checked_options
from nkilib.jax.functions.cross_entropy.targets import IGNORED, Array
from nkilib.jax.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.jax.functions.linear_cross_entropy.checks import (
    check_indices,
    check_operands,
    checked_compute_dtype,
    checked_scale,
)
from nkilib.jax.functions.linear_cross_entropy.kernels import LinearRecipe
from nkilib.jax.functions.linear_cross_entropy.rows import computed_rows, narrowed
from nkilib.jax.functions.linear_token_scores.results import LinearTokenScores

_CALLER: Final = "linear_token_scores"


def linear_token_scores(
    input: Array,
    linear_weight: Array,
    target: Array,
    *,
    linear_bias: Array | None = None,
    ignore_index: int = -100,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    outputs: Iterable[str] = ("entropy",),
    compute_dtype: Any = None,
    weight_layout: str = "vd",
) -> LinearTokenScores:
    """Log-probability of each target and further scores of each position, from hidden states and the output layer.

    Reinforcement learning and preference optimization take these. It equals, with z = softcap(logit_scale *
    (input @ linear_weight.T + linear_bias)) / temperature in float32, and p = jax.nn.softmax(z)::

        logprob = jnp.take_along_axis(jax.nn.log_softmax(z), target[..., None], -1)[..., 0]
        entropy = -(p * jnp.log(p)).sum(-1)
        lse = jax.nn.logsumexp(z, -1)
        argmax = z.argmax(-1)
        log_sum_squares = jnp.log(jnp.square(p).sum(-1))
        mean_logit = z.mean(-1)

    in one launch forward and one backward, without logits in memory and without a rounding of logits. The gradients of
    ``input``, ``linear_weight`` and ``linear_bias`` have the types of these arrays, come from float32 sums and are
    rounded once; one that nobody asks for is not computed, and a score without a gradient costs the backward nothing.

    A class that a bias of -inf masks stays masked under a cap, adds nothing to entropy and ``log_sum_squares``, and
    is left out of ``mean_logit``.

    It works under ``jax.jit``, ``jax.grad``, ``jax.checkpoint``, ``jax.vmap`` and ``jax.shard_map``. Derivatives are
    first ones in reverse mode. A class that does not exist is an IndexError where the targets are known (numpy arrays,
    and on the CPU arrays that are not being traced); else the log-probability is NaN, and so are its gradients.

    Args:
        input: hidden states, [..., D], bfloat16, float16 or float32; D from 16 to 16,384.
        linear_weight: [V, D], or [D, V] by ``weight_layout``, of the same type unless there is a ``compute_dtype``.
        target: of any integer type, each in [0, V) or ``ignore_index``: [...], of the shape of ``input`` without the
            features, or [..., K], of 1 to 64 ids of each position, which may be equal.
        linear_bias: [V], of the type of ``input`` or float32; used in float32. -inf masks a class.
        ignore_index: target of positions that do not count, as those of the prompt. Their ``logprob`` is 0, and what
            comes upstream of it is not looked at; the other scores are computed, and have gradients.
        temperature: from 1e-6 to 1e6, divides the logits, after the cap: that of the samples, as a rule. A Python
            number, a constant of the compiled kernel, as ``logit_scale``: each new value compiles anew.
        logit_scale: from 1e-6 to 1e6, multiplies the logits, before the cap.
        logit_softcap: c from 1e-30 to 1e30 makes c * tanh(logits / c) of the logits; None leaves them.
        outputs: names of the scores beside ``logprob``: ``"entropy"``, ``"lse"``, ``"argmax"``, ``"log_sum_squares"``
            and ``"mean_logit"``. Gradients flow through ``logprob``, ``entropy`` and ``lse``.
        compute_dtype: bfloat16, float16 or float32: operands of another type, which need not be alike then, are rounded
            to it for the products, and so is the bias. None: that of the operands.
        weight_layout: ``"vd"`` or ``"dv"``, as for :func:`nkilib.jax.linear_cross_entropy`.

    Returns:
        The scores, float32 but for ``argmax``, int32; None for what ``outputs`` lacks. ``logprob`` has the shape of
        ``target``, the others that of the positions.

    Raises:
        TypeError: an argument has the wrong Python type or dtype, or a number that is compiled in is traced.
        ValueError: an unknown name in ``outputs``; shapes do not fit; an option is out of range; the environment
            says two numbers of cores.
        IndexError: a target out of range, where targets are known.
        NotImplementedError: arrays are not where kernels run; a derivative in forward mode through the gradients, or a
            second one.
    """
    names = checked_outputs(_CALLER, outputs)
    options = checked_options(
        _CALLER,
        linear_token_scores,
        ignore_index=ignore_index,
        logit_softcap=logit_softcap,
        temperature=temperature,
    )
    scale = checked_scale(_CALLER, linear_token_scores, logit_scale)
    dtype = checked_compute_dtype(_CALLER, compute_dtype)
    given = LinearArguments(input, linear_weight, target, linear_bias, weight_layout)
    check_operands(_CALLER, given, dtype)
    check_indices(_CALLER, given, _target_shape(given))
    check_range(_CALLER, target, options.ignore_index, given.classes)
    target, is_narrowed = narrowed(target, options.ignore_index, given.classes)
    launch_cores(f"nkilib.jax.{_CALLER}", library_grid())  # of a compiled launch JAX would wrap what is raised
    recipe = LinearRecipe(
        caller=_CALLER,
        is_loss=False,
        options=replace(options, ignore_index=IGNORED) if is_narrowed else options,
        logit_scale=scale,
        compute_dtype=given.rounding_dtype(dtype),
        weight_layout=weight_layout,
        wanted=Wanted(log_sum=True, **{name: True for name in names if name != "lse"}),
        simulator=simulator_options(),
    )
    return _compiled(recipe, names, input, linear_weight, target, linear_bias)


def _target_shape(given: LinearArguments) -> tuple[int, ...]:
    """That of the positions, with an axis of ids if the target has one.

    Raises:
        ValueError: more ids than a launch takes, or none.
    """
    if given.target.ndim != given.input.ndim:
        return given.positions
    ids = given.target.shape[-1]
    if not 1 <= ids <= IDS_MAX:
        raise ValueError(
            f"{_CALLER}: target may have 1 to {IDS_MAX} ids of each position, got shape {given.target.shape} for "
            f"positions of shape {given.positions}; call it for parts of them, with outputs=() for all but one"
        )
    return (*given.positions, ids)


def _computed(
    recipe: LinearRecipe,
    names: tuple[str, ...],
    input: jax.Array,
    linear_weight: jax.Array,
    target: jax.Array,
    linear_bias: jax.Array | None,
) -> LinearTokenScores:
    """:func:`linear_token_scores` of checked arguments; else each small operation would be a program of its own."""
    results, _ = computed_rows(recipe, input, linear_weight, target, linear_bias)
    scores = {name: results[name].reshape(input.shape[:-1]) if name in names else None for name in OUTPUTS}
    return LinearTokenScores(results["logprob"].reshape(target.shape), **scores)


_compiled: Final = jax.jit(_computed, static_argnums=(0, 1))
