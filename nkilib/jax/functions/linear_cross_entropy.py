# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy``: the loss of an output layer from hidden states, on kernels that store no logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from nkilib.base.lnc import launch_cores, library_grid
from nkilib.core.host.options import NoKeywords, check_flags, check_reduction, hides_unknown, refuse_unknown
from nkilib.experimental.loss.cross_entropy.launch import Wanted
from nkilib.jax.functions.arguments import (
    IGNORED,
    Array,
    check_normalizer,
    check_outputs,
    check_range,
    check_temperatures,
    check_weight,
    checked_options,
    narrowed,
    temperature_array,
)
from nkilib.jax.functions.cross_entropy import CrossEntropyOutputs, returned_values
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


_CALLER: Final = "linear_cross_entropy"


def _computed(
    recipe: LinearRecipe,
    reduction: str,
    return_outputs: bool,
    input: jax.Array,
    linear_weight: jax.Array,
    target: jax.Array,
    linear_bias: jax.Array | None,
    weight: jax.Array | None,
    normalizer: jax.Array | None,
    temperature: jax.Array | None,
) -> jax.Array | CrossEntropyOutputs:
    # Compiled, because otherwise each small operation would be a separate program.
    results, classes = computed_rows(recipe, input, linear_weight, target, linear_bias, weight, temperature)
    valid = classes != IGNORED
    if weight is None:  # no kernel is needed for it
        results = {**results, "position_weight": valid.astype(jnp.float32)}
    divisor = None if normalizer is None else jax.lax.stop_gradient(jnp.asarray(normalizer, jnp.float32))
    shape = input.shape[:-1]
    return returned_values(results, valid, recipe.options, reduction, divisor, shape, return_outputs)


_compiled: Final = jax.jit(_computed, static_argnums=(0, 1, 2))


@overload
def linear_cross_entropy(
    input: Array,
    linear_weight: Array,
    target: Array,
    *,
    linear_bias: Array | None = ...,
    weight: Array | None = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    logit_softcap: float | None = ...,
    temperature: Array | float = ...,
    logit_scale: float = ...,
    compute_dtype: Any = ...,
    lse_square_scale: float = ...,
    normalizer: Array | float | None = ...,
    return_outputs: Literal[False] = ...,
    weight_layout: str = ...,
) -> jax.Array: ...


@overload
def linear_cross_entropy(
    input: Array,
    linear_weight: Array,
    target: Array,
    *,
    linear_bias: Array | None = ...,
    weight: Array | None = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    logit_softcap: float | None = ...,
    temperature: Array | float = ...,
    logit_scale: float = ...,
    compute_dtype: Any = ...,
    lse_square_scale: float = ...,
    normalizer: Array | float | None = ...,
    return_outputs: Literal[True],
    weight_layout: str = ...,
) -> CrossEntropyOutputs: ...


@overload
def linear_cross_entropy(
    input: Array,
    linear_weight: Array,
    target: Array,
    *,
    linear_bias: Array | None = ...,
    weight: Array | None = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    logit_softcap: float | None = ...,
    temperature: Array | float = ...,
    logit_scale: float = ...,
    compute_dtype: Any = ...,
    lse_square_scale: float = ...,
    normalizer: Array | float | None = ...,
    return_outputs: bool = ...,
    weight_layout: str = ...,
) -> jax.Array | CrossEntropyOutputs: ...


@hides_unknown
def linear_cross_entropy(
    input: Array,
    linear_weight: Array,
    target: Array,
    *,
    linear_bias: Array | None = None,
    weight: Array | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    temperature: Array | float = 1.0,
    logit_scale: float = 1.0,
    compute_dtype: Any = None,
    lse_square_scale: float = 0.0,
    normalizer: Array | float | None = None,
    return_outputs: bool = False,
    weight_layout: str = "vd",
    **unknown: Unpack[NoKeywords],
) -> jax.Array | CrossEntropyOutputs:
    """Cross-entropy between an output layer's logits and targets, without an array of logits in memory.

    The logits are z = softcap(logit_scale * (input @ linear_weight.T + linear_bias)) / temperature, with products in
    float32, where softcap is the cap that ``logit_softcap`` describes. The result equals ``nkilib.jax.cross_entropy(z,
    target, weight, ...)``, and without options ``optax.softmax_cross_entropy_with_integer_labels(z, target).mean()``.
    The gradients of ``input``, ``linear_weight`` and ``linear_bias`` have the types of these arrays. They are summed in
    float32 and rounded once; a gradient that is not needed is not computed. With float16, all gradients are NaN if the
    upstream gradient of one position is infinite or NaN: all gradients are scaled by a power of two that depends on the
    largest upstream gradient.

    The function works under ``jax.jit``, ``jax.grad``, ``jax.checkpoint``, ``jax.vmap`` and ``jax.shard_map``. It has
    first derivatives in reverse mode. A target that is not a class raises an IndexError if the values of the targets
    are known (numpy arrays, and on the CPU arrays that are not being traced). Otherwise the loss of the position is
    NaN, and so are its row of the gradient of ``input`` and the whole gradients of ``linear_weight`` and
    ``linear_bias``.

    Args:
        input: hidden states, [..., D], bfloat16, float16 or float32; D from 16 to 16,384.
        linear_weight: [V, D], or [D, V] with ``weight_layout="dv"``; of the type of ``input`` if ``compute_dtype`` is
            None.
        target: class indices of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without
            the features.
        linear_bias: [V], of the type of ``input`` or float32; used in float32, without rounding. -inf masks a class.
        weight: [V] floating, a factor for each class, used in float32; None means 1.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored, ``"sum"`` does
            not, ``"none"`` returns one loss per position.
        ignore_index: class index of ignored positions. They have loss 0 and gradient 0.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes (arXiv 1512.00567).
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c), except -inf; None applies no
            cap. Used in Gemma 2, arXiv 2408.00118.
        temperature: divides the logits after the cap; from 1e-6 to 1e6. A Python number is a constant of the compiled
            kernel, as ``logit_scale`` is: each new value compiles a new kernel. A floating array of one element, or of
            a shape that broadcasts to that of the targets, is an argument of the kernel, used in float32, and may be
            traced: see :func:`nkilib.jax.cross_entropy`. A number out of range in a traced array makes the results of
            its position NaN, and therefore the whole gradients of ``linear_weight`` and ``linear_bias``.
        logit_scale: multiplies the logits before the cap, as in the Cohere models; from 1e-6 to 1e6. Neither
            ``temperature`` nor ``logit_scale`` is multiplied into an operand of the product, so they add no rounding of
            operands.
        compute_dtype: bfloat16, float16 or float32. Operands may then have different types, and are rounded to this
            type for the products. None: the type of the operands.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss), as in PaLM, arXiv 2204.02311.
        normalizer: number that replaces the divisor of the mean, such as the number of targets on all devices, or with
            ``weight`` the sum of the targets' weights. It may be traced; it has no derivative.
        return_outputs: whether to return :class:`CrossEntropyOutputs`.
        weight_layout: ``"vd"``, the layout of PyTorch, of Hugging Face and of an embedding that is shared with the
            output layer, or ``"dv"``, the layout of the kernel of ``flax.linen.Dense``. The weight is not copied in
            either layout.

    Returns:
        The loss, float32: without dimensions, or for ``"none"`` of the shape of the targets. If every position is
        ignored the mean is NaN and the gradient 0.

    Raises:
        TypeError: an argument has the wrong Python type or dtype (float64 is not supported, nor are different types
            without ``compute_dtype``), or a number that is a constant of the compiled kernel, such as ``logit_scale``,
            is an array of JAX.
        ValueError: shapes do not fit; ``reduction``, ``weight_layout`` or ``compute_dtype`` is unknown; an option, or a
            known value of a temperature array, is out of range; ``normalizer`` is given without a mean; the environment
            gives two different numbers of cores.
        IndexError: a target is out of range, and the values of the targets are known.
        NotImplementedError: an array is on a platform on which the kernels do not run; a gradient of ``weight`` or
            ``temperature`` is requested; a derivative of the gradients, in forward or reverse mode, is requested.
    """
    if unknown:
        refuse_unknown(linear_cross_entropy, unknown)
    check_flags(_CALLER, return_outputs=return_outputs)
    temperatures = temperature_array(temperature)
    options = checked_options(
        _CALLER,
        linear_cross_entropy,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        logit_softcap=logit_softcap,
        lse_square_scale=lse_square_scale,
        temperature=temperature if temperatures is None else 1.0,
    )
    scale = checked_scale(_CALLER, linear_cross_entropy, logit_scale)
    dtype = checked_compute_dtype(_CALLER, compute_dtype)
    arguments = LinearArguments(input, linear_weight, target, linear_bias, weight_layout)
    check_operands(_CALLER, arguments, dtype, weight=weight)
    check_indices(_CALLER, arguments, arguments.positions)
    check_temperatures(_CALLER, temperatures, arguments.positions)
    check_reduction(_CALLER, reduction)
    if weight is not None:
        check_weight(_CALLER, weight, arguments.classes)
    check_normalizer(_CALLER, normalizer, reduction)
    if return_outputs:
        check_outputs(_CALLER, arguments.classes)
    check_range(_CALLER, target, options.ignore_index, arguments.classes)
    target, is_narrowed = narrowed(target, options.ignore_index, arguments.classes)
    if normalizer is not None and not isinstance(normalizer, jax.Array):
        normalizer = np.asarray(normalizer, np.float32)  # JAX would make int32 of integers, which wraps around
    # Checked here, because JAX wraps errors raised inside a compiled function.
    launch_cores(f"nkilib.jax.{_CALLER}", library_grid())
    recipe = LinearRecipe(
        caller=_CALLER,
        is_loss=True,
        options=replace(options, ignore_index=IGNORED) if is_narrowed else options,
        logit_scale=scale,
        compute_dtype=arguments.rounding_dtype(dtype),
        weight_layout=weight_layout,
        wanted=Wanted(
            argmax=return_outputs,
            entropy=return_outputs,
            log_sum=True,
            target=return_outputs or weight is not None,
        ),
        simulator=simulator_options(),
    )
    arrays = (input, linear_weight, target, linear_bias, weight, normalizer, temperatures)
    return _compiled(recipe, reduction, return_outputs, *arrays)
