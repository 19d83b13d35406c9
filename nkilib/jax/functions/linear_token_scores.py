# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_token_scores``: log-probability, entropy and further scores of tokens, from hidden states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from nkilib.base.lnc import launch_cores, library_grid
from nkilib.core.host.options import NoKeywords, hides_unknown, refuse_unknown
from nkilib.experimental.loss.cross_entropy.launch import Wanted
from nkilib.experimental.loss.linear.launch import IDS_MAX
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import OUTPUTS, checked_outputs
from nkilib.jax.functions.arguments import (
    IGNORED,
    Array,
    check_range,
    check_temperatures,
    checked_options,
    narrowed,
    temperature_array,
)
from nkilib.jax.functions.linear_arguments import (
    LinearArguments,
    check_indices,
    check_operands,
    checked_compute_dtype,
    checked_scale,
)
from nkilib.jax.functions.linear_derivative import LinearRecipe, computed_rows
from nkilib.jax.launching import simulator_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LinearTokenScores(NamedTuple):
    """Scores in the shape of the positions, float32 except ``argmax``; None for scores that were not requested.

    z are the logits after scale, softcap and temperature, p is the softmax of z. V is the number of classes, K of
    target ids per position. Scores of ignored positions are computed too, except the log-probability.

    Attributes:
        logprob: log-probability of the target in nats, at most 0; 0 at ignored positions. With K target ids per
            position, ``logprob`` has a further axis of size K. Differentiable.
        entropy: entropy of p, in nats. Differentiable.
        lse: log-sum-exp of z, in nats. Differentiable.
        argmax: int32, the first class with the largest z; V, which is not a class, if an element of z is NaN.
        log_sum_squares: log of the sum of p^2 over the classes, at most 0.
        mean_logit: the mean of z over the classes that no bias of -inf masks.
    """

    logprob: jax.Array
    entropy: jax.Array | None
    lse: jax.Array | None
    argmax: jax.Array | None
    log_sum_squares: jax.Array | None
    mean_logit: jax.Array | None


_CALLER: Final = "linear_token_scores"


def _checked_target_shape(arguments: LinearArguments) -> tuple[int, ...]:
    """Return the shape that the target must have: that of the positions, with an axis of ids if the target has one more
    axis.

    Raises:
        ValueError: the number of ids is 0, or more than a launch takes.
    """
    if arguments.target.ndim != arguments.input.ndim:
        return arguments.positions
    ids = arguments.target.shape[-1]
    if not 1 <= ids <= IDS_MAX:
        raise ValueError(
            f"{_CALLER}: target may have 1 to {IDS_MAX} ids of each position, got shape {arguments.target.shape} for "
            f"positions of shape {arguments.positions}; call it for parts of them, with outputs=() for all but one"
        )
    return (*arguments.positions, ids)


def _computed(
    recipe: LinearRecipe,
    names: tuple[str, ...],
    input: jax.Array,
    linear_weight: jax.Array,
    target: jax.Array,
    linear_bias: jax.Array | None,
    temperature: jax.Array | None,
) -> LinearTokenScores:
    # Compiled, because otherwise each small operation would be a separate program.
    results, _ = computed_rows(recipe, input, linear_weight, target, linear_bias, temperature=temperature)
    scores = {name: results[name].reshape(input.shape[:-1]) if name in names else None for name in OUTPUTS}
    return LinearTokenScores(results["logprob"].reshape(target.shape), **scores)


_compiled: Final = jax.jit(_computed, static_argnums=(0, 1))


@hides_unknown
def linear_token_scores(
    input: Array,
    linear_weight: Array,
    target: Array,
    *,
    linear_bias: Array | None = None,
    ignore_index: int = -100,
    temperature: Array | float = 1.0,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    outputs: Iterable[str] = ("entropy",),
    compute_dtype: Any = None,
    weight_layout: str = "vd",
    **unknown: Unpack[NoKeywords],
) -> LinearTokenScores:
    """Return the log-probability of each target, and further scores of each position, from hidden states and an output
    layer.

    Reinforcement learning and preference optimization use these scores. With z = softcap(logit_scale * (input @
    linear_weight.T + linear_bias)) / temperature in float32, where softcap is the cap that ``logit_softcap`` describes,
    and p = jax.nn.softmax(z), the scores equal::

        logprob = jnp.take_along_axis(jax.nn.log_softmax(z), target[..., None], -1)[..., 0]
        entropy = -(p * jnp.log(p)).sum(-1)
        lse = jax.nn.logsumexp(z, -1)
        argmax = z.argmax(-1)
        log_sum_squares = jnp.log(jnp.square(p).sum(-1))
        mean_logit = z.mean(-1)

    There is one launch forward and one backward, without logits in memory and without a rounding of logits. The
    gradients of ``input``, ``linear_weight`` and ``linear_bias`` have the types of these arrays. They are summed in
    float32 and rounded once; a gradient that is not needed is not computed, and a score without a gradient costs the
    backward nothing.

    A class that a bias of -inf masks stays masked under a softcap, adds nothing to entropy and ``log_sum_squares``, and
    is excluded from ``mean_logit``.

    The function works under ``jax.jit``, ``jax.grad``, ``jax.checkpoint``, ``jax.vmap`` and ``jax.shard_map``. It has
    first derivatives in reverse mode. A target that is not a class raises an IndexError if the values of the targets
    are known (numpy arrays, and on the CPU arrays that are not being traced). Otherwise the log-probability is NaN, and
    so are its gradients.

    Args:
        input: hidden states, [..., D], bfloat16, float16 or float32; D from 16 to 16,384.
        linear_weight: [V, D], or [D, V] with ``weight_layout="dv"``; of the type of ``input`` if ``compute_dtype`` is
            None.
        target: class indices of any integer type, each in [0, V) or ``ignore_index``: [...], of the shape of ``input``
            without the features, or [..., K], 1 to 64 ids per position, which may be equal.
        linear_bias: [V], of the type of ``input`` or float32; used in float32, without rounding. -inf masks a class.
        ignore_index: target of ignored positions, such as those of the prompt. Their ``logprob`` is 0, and the upstream
            gradient of this ``logprob`` is not read; the other scores are computed, and have gradients.
        temperature: divides the logits after the cap, usually the temperature with which the tokens were sampled; from
            1e-6 to 1e6. A Python number is a constant of the compiled kernel, as ``logit_scale`` is: each new value
            compiles a new kernel. A floating array of one element, or of a shape that broadcasts to that of the
            positions, such as [batch, 1] for a temperature of each sample, is an argument of the kernel, used in
            float32, and may be traced: see :func:`nkilib.jax.cross_entropy`. A number out of range in a traced array
            makes the scores of its position except ``argmax`` NaN, and therefore the whole gradients of
            ``linear_weight`` and ``linear_bias``.
        logit_scale: multiplies the logits before the cap; from 1e-6 to 1e6.
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c); None applies no cap.
        outputs: names of the scores besides ``logprob``: ``"entropy"``, ``"lse"``, ``"argmax"``, ``"log_sum_squares"``
            and ``"mean_logit"``. Gradients flow through ``logprob``, ``entropy`` and ``lse``.
        compute_dtype: bfloat16, float16 or float32. Operands may then have different types, and are rounded to this
            type for the products. None: the type of the operands.
        weight_layout: ``"vd"`` or ``"dv"``; see :func:`nkilib.jax.linear_cross_entropy`.

    Returns:
        The scores, float32 except ``argmax``, which is int32; None for scores that are not in ``outputs``. ``logprob``
        has the shape of ``target``, the others that of the positions.

    Raises:
        TypeError: an argument has the wrong Python type or dtype, or a number that is a constant of the compiled
            kernel, such as ``logit_scale``, is an array of JAX.
        ValueError: a name in ``outputs`` is unknown; shapes do not fit; an option, or a known value of a temperature
            array, is out of range; the environment gives two different numbers of cores.
        IndexError: a target is out of range, and the values of the targets are known.
        NotImplementedError: an array is on a platform on which the kernels do not run; a gradient of ``temperature`` is
            requested; a derivative of the gradients, in forward or reverse mode, is requested.
    """
    if unknown:
        refuse_unknown(linear_token_scores, unknown)
    names, temperatures = checked_outputs(_CALLER, outputs), temperature_array(temperature)
    options = checked_options(
        _CALLER,
        linear_token_scores,
        ignore_index=ignore_index,
        logit_softcap=logit_softcap,
        temperature=temperature if temperatures is None else 1.0,
    )
    scale = checked_scale(_CALLER, linear_token_scores, logit_scale)
    dtype = checked_compute_dtype(_CALLER, compute_dtype)
    arguments = LinearArguments(input, linear_weight, target, linear_bias, weight_layout)
    check_operands(_CALLER, arguments, dtype)
    check_indices(_CALLER, arguments, _checked_target_shape(arguments))
    check_temperatures(_CALLER, temperatures, arguments.positions)
    check_range(_CALLER, target, options.ignore_index, arguments.classes)
    target, is_narrowed = narrowed(target, options.ignore_index, arguments.classes)
    # Checked here, because JAX wraps errors raised inside a compiled function.
    launch_cores(f"nkilib.jax.{_CALLER}", library_grid())
    recipe = LinearRecipe(
        caller=_CALLER,
        is_loss=False,
        options=replace(options, ignore_index=IGNORED) if is_narrowed else options,
        logit_scale=scale,
        compute_dtype=arguments.rounding_dtype(dtype),
        weight_layout=weight_layout,
        wanted=Wanted(log_sum=True, **{name: True for name in names if name != "lse"}),
        simulator=simulator_options(),
    )
    return _compiled(recipe, names, input, linear_weight, target, linear_bias, temperatures)
