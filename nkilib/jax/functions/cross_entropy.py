# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy``: softmax cross-entropy on the kernels, with the options of large-vocabulary training.

:func:`returned_values` makes the return value from the results of the rows: the reduced loss, or
:class:`CrossEntropyOutputs`. ``linear_cross_entropy`` calls it too. N positions, V classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypedDict, overload

import jax
import jax.numpy as jnp
import numpy as np

from nkilib.base.lnc import launch_cores, library_grid
from nkilib.core.host.options import check_flags, shows
from nkilib.experimental.loss.cross_entropy.launch import LossOptions
from nkilib.jax.functions.arguments import (
    CALLER,
    IGNORED,
    TILE_DTYPES,
    Array,
    check_arguments,
    check_outputs,
    check_range,
    check_temperatures,
    checked_options,
    class_indices,
    temperature_array,
    temperature_rows,
)
from nkilib.jax.functions.cross_entropy_derivative import Recipe, loss_of_rows
from nkilib.jax.launching import simulator_options
from nkilib.jax.rows import as_rows, axis_of, rows_shape

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _ConstantOptions(TypedDict, total=False):
    """The keyword arguments of :func:`cross_entropy` that are options of the loss and are compiled into the kernels."""

    logit_softcap: float | None
    lse_square_scale: float
    exact_maximum: bool | None


class CrossEntropyOutputs(NamedTuple):
    """The loss and the further outputs of the same pass over the logits.

    "Per position" is the shape of class-index targets. "Logits" are the logits after ``logit_softcap`` and
    ``temperature``. At ignored positions lse, argmax and entropy are computed too; the other outputs are 0.

    Attributes:
        loss: float32, reduced as requested; it includes ``z_loss``. Differentiable.
        lse: float32 per position, log-sum-exp of the logits, in nats. Differentiable.
        z_loss: float32, the part of the loss that ``lse_square_scale`` adds, reduced like the loss. Differentiable.
        logprob: float32 per position, log-probability of the target in nats, at most 0. Differentiable. None for class
            probabilities, which have no single target.
        argmax: int32 per position, the first class with the largest logit; V, which is not a class, if a logit is NaN.
        entropy: float32 per position, entropy of the softmax of the logits, in nats. Differentiable.
    """

    loss: jax.Array
    lse: jax.Array
    z_loss: jax.Array
    logprob: jax.Array | None
    argmax: jax.Array
    entropy: jax.Array


def _divisor(
    results: Mapping[str, jax.Array], normalizer: jax.Array | None, valid: jax.Array | None
) -> jax.Array | int:
    """Return the divisor of a mean, as in PyTorch.

    The divisor is ``normalizer`` if given. Otherwise it is the number of positions if targets are class probabilities
    (``valid`` is None), and the sum of the targets' weights if they are class indices; NaN in place of a sum of 0.
    """
    if normalizer is not None:
        return normalizer
    if valid is None:
        return results["loss"].shape[0]
    weight = jax.lax.stop_gradient(results["position_weight"]).sum()
    # A mean of nothing is NaN, whatever smoothing adds to 0 / 0.
    return jnp.where(weight == 0.0, jnp.nan, weight)


def _reduced(values: jax.Array, reduction: str, shape: tuple[int, ...], divisor: jax.Array | int | None) -> jax.Array:
    if reduction == "none":
        return values.reshape(shape)
    total = values.sum()
    return total if divisor is None else total / divisor


def _z_loss(lse: jax.Array, valid: jax.Array | None, scale: float) -> jax.Array:
    if scale == 0.0:
        return jnp.zeros_like(lse)
    return scale * jnp.square(lse if valid is None else jnp.where(valid, lse, 0.0))


def returned_values(
    results: Mapping[str, jax.Array],
    valid: jax.Array | None,
    options: LossOptions,
    reduction: str,
    normalizer: jax.Array | None,
    shape: tuple[int, ...],
    return_outputs: bool,
) -> jax.Array | CrossEntropyOutputs:
    """Return the value of a loss function: the reduced loss, or :class:`CrossEntropyOutputs`.

    Args:
        results: the results of :func:`.cross_entropy_derivative.loss_of_rows` or
            :func:`.linear_derivative.computed_rows`, by name; ``position_weight`` must be among them.
        valid: [N], whether each position is valid; None: targets are class probabilities, and all positions are valid.
        options: the options of the loss.
        reduction, return_outputs: the arguments of the loss function.
        normalizer: the argument of the loss function, in float32 and without a gradient, or None.
        shape: the shape of a result per position.
    """
    divisor = _divisor(results, normalizer, valid) if reduction == "mean" else None
    loss = _reduced(results["loss"], reduction, shape, divisor)
    if not return_outputs:
        return loss
    z_loss = _z_loss(results["lse"], valid, options.lse_square_scale)
    return CrossEntropyOutputs(
        loss=loss,
        lse=results["lse"].reshape(shape),
        z_loss=_reduced(z_loss, reduction, shape, divisor),
        logprob=None if valid is None else results["logprob"].reshape(shape),
        argmax=results["argmax"].reshape(shape),
        entropy=results["entropy"].reshape(shape),
    )


def _computed(
    recipe: Recipe,
    reduction: str,
    axis: int,
    input: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    normalizer: jax.Array | None,
    temperature: jax.Array | None,
) -> jax.Array | CrossEntropyOutputs:
    # Compiled, because otherwise each small operation would be a separate program.
    logits, options = as_rows(input, axis), recipe.options
    if target.shape == input.shape:
        is_taken = target.dtype in TILE_DTYPES
        rows_target, valid = as_rows(target if is_taken else target.astype(jnp.float32), axis), None
    else:
        rows_target = jnp.asarray(class_indices(target, options.ignore_index, logits.shape[1])).reshape(-1)
        valid = rows_target != IGNORED
    class_weight = None if weight is None else weight.astype(jnp.float32)
    divisor = None if normalizer is None else jax.lax.stop_gradient(jnp.asarray(normalizer, jnp.float32))
    shape = rows_shape(input.shape, axis)
    results = loss_of_rows(recipe, logits, rows_target, class_weight, temperature_rows(temperature, shape))
    return returned_values(results, valid, options, reduction, divisor, shape, recipe.with_outputs)


_compiled: Final = jax.jit(_computed, static_argnums=(0, 1, 2))


@overload
def cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    *,
    normalizer: Array | float | None = ...,
    return_outputs: Literal[False] = ...,
    axis: int = ...,
    temperature: Array | float = ...,
    **recipe: Unpack[_ConstantOptions],
) -> jax.Array: ...


@overload
def cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    *,
    normalizer: Array | float | None = ...,
    return_outputs: Literal[True],
    axis: int = ...,
    temperature: Array | float = ...,
    **recipe: Unpack[_ConstantOptions],
) -> CrossEntropyOutputs: ...


@overload
def cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    *,
    normalizer: Array | float | None = ...,
    return_outputs: bool = ...,
    axis: int = ...,
    temperature: Array | float = ...,
    **recipe: Unpack[_ConstantOptions],
) -> jax.Array | CrossEntropyOutputs: ...


@shows(_ConstantOptions, defaults=LossOptions)
def cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    normalizer: Array | float | None = None,
    return_outputs: bool = False,
    axis: int = -1,
    temperature: Array | float = 1.0,
    **recipe: Unpack[_ConstantOptions],
) -> jax.Array | CrossEntropyOutputs:
    """Cross-entropy between logits and targets, on the kernels of :mod:`nkilib.experimental.loss`.

    With z = softcap(input) / temperature, where softcap is the cap that ``logit_softcap`` describes, lse the
    log-sum-exp of z, w the class weights (1 without any) and e = ``label_smoothing``, the loss of a position with
    target t is ``(1 - e) * w[t] * (lse - z[t]) + (e / V) * sum_k w[k] * (lse - z[k]) + lse_square_scale * lse ** 2``.
    Without options, this is the mean of ``optax.softmax_cross_entropy_with_integer_labels``. Options have the same
    meaning as in :func:`nkilib.torch.cross_entropy`. The loss and all sums are float32 for every type of the logits.
    The gradient has the type of the logits and is rounded once.

    The function works under ``jax.jit``, ``jax.grad``, ``jax.vmap`` (one launch for the whole batch) and
    ``jax.shard_map``. It has first derivatives in reverse mode. A target that is not a class raises an IndexError if
    the values of the targets are known (numpy arrays, and on the CPU arrays that are not being traced). Otherwise the
    loss of the position and its row of the gradient are NaN.

    Args:
        input: logits, bfloat16, float16 or float32, [V] or [..., V], or with the classes along another ``axis``.
        target: class indices of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without
            the classes; or class probabilities, floating, of the shape of ``input``. With probabilities, ``target`` and
            ``weight`` have gradients too; XLA computes them, which takes several times the memory of the logits in
            float32.
        weight: [V] floating, a factor for each class, used in float32; None means 1.
        ignore_index: class index of ignored positions. They have loss 0 and gradient 0.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored (by the number
            of positions for class probabilities), ``"sum"`` does not, ``"none"`` returns one loss per position.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes (arXiv 1512.00567).
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(input / c), except -inf; None applies no
            cap. Used in Gemma 2, arXiv 2408.00118.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss), as in PaLM, arXiv 2204.02311.
        temperature: from 1e-6 to 1e6, divides the logits, after the cap. A Python number is a constant of the compiled
            kernels. A floating array of one element, or of a shape that broadcasts to that of class indices, such as
            [batch, 1], is an argument of the kernels, used in float32: it may be traced, and a new value needs no new
            compilation. An array has no derivative: inside a differentiated function, pass
            ``jax.lax.stop_gradient(temperature)``. A number out of range (0, negative, infinite, NaN) raises a
            ValueError if the values of the array are known (numpy arrays, and on the CPU arrays that are not being
            traced). Otherwise the results of the position except ``argmax`` are NaN, and so is its row of the gradient,
            even if the position is ignored.
        exact_maximum: True computes the maximum of every row before its exponentials, False uses a shift known in
            advance, None chooses the form with the shorter modelled time (docs/explanation/cross_entropy_shift.md).
            Both forms have the same error bounds.
        normalizer: number that replaces the divisor of the mean, such as the number of targets on all devices, or with
            ``weight`` the sum of the targets' weights. It may be traced; it has no derivative.
        return_outputs: whether to return :class:`CrossEntropyOutputs`.
        axis: the axis of the classes.

    Returns:
        The loss, float32: without dimensions, or for ``"none"`` of the shape of class indices. If every position is
        ignored the mean is NaN and the gradient 0.

    Raises:
        TypeError: an argument has the wrong Python type or dtype (float64 and integer logits are not supported), or a
            number that is a constant of the compiled kernel, such as ``label_smoothing``, is an array of JAX.
        ValueError: shapes do not fit; ``axis`` does not exist; ``reduction`` is unknown; an option, or a known value of
            a temperature array, is out of range; ``normalizer`` is given without a mean; ``return_outputs`` with more
            than 2^24 classes; the environment gives two different numbers of cores.
        IndexError: a target is out of range, and the values of the targets are known.
        NotImplementedError: an array is on a platform on which the kernels do not run; a gradient of ``temperature``,
            or of ``weight`` with class indices, is requested; a derivative of the gradient, in forward or reverse mode,
            is requested.
    """
    check_flags(CALLER, return_outputs=return_outputs)
    temperatures = temperature_array(temperature)
    options = checked_options(
        CALLER,
        cross_entropy,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        temperature=temperature if temperatures is None else 1.0,
        **recipe,
    )
    check_arguments(input, target, weight, options, reduction, normalizer, axis)
    check_temperatures(CALLER, temperatures, rows_shape(input.shape, axis))
    classes = input.shape[axis_of(input.shape, axis)]
    if return_outputs:
        check_outputs(CALLER, classes)
    if target.shape != input.shape:
        check_range(CALLER, target, options.ignore_index, classes)
        if isinstance(target, np.ndarray):  # before JAX makes int32 of 64 bits
            target, options = (
                class_indices(target, options.ignore_index, classes),
                replace(options, ignore_index=IGNORED),
            )
    if normalizer is not None and not isinstance(normalizer, jax.Array):
        normalizer = np.asarray(normalizer, np.float32)  # JAX would make int32 of integers, which wraps around
    # Checked here, because JAX wraps errors raised inside a compiled function.
    launch_cores("nkilib.jax.cross_entropy", library_grid())
    recipe_of_kernels = Recipe(options, return_outputs, simulator_options())
    return _compiled(recipe_of_kernels, reduction, axis, input, target, weight, normalizer, temperatures)
