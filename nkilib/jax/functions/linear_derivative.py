# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and scores of positions from hidden states, and their derivatives for ``jax.grad``.

:func:`computed_rows` computes the results of a :class:`LinearRecipe`; :func:`launched_forward` and
:func:`launched_backward` launch the kernels.

N positions, D features, V classes; K target ids per position, for kernels that score several. ``rows`` holds the arrays
with an entry for each position; ``shared`` holds the arrays that all positions share: weight and bias of the output
layer, and class weights. Temperatures are in ``rows`` if they are an array; if that entry is None, the temperature in
the options divides the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, Wanted
from nkilib.experimental.loss.linear.launch import CLASSES_FIRST
from nkilib.jax.derivatives import differing_alike, flags_of, saved_flags
from nkilib.jax.functions.arguments import (
    IGNORED,
    OUT_OF_RANGE,
    TILE_DTYPES,
    class_indices,
    refuse_temperature_derivative,
    temperature_rows,
)
from nkilib.jax.launching import Kernel, Result, launch
from nkilib.jax.rows import Arrays, as_rows, batched_by_example, batched_by_rows, required
from nkilib.simulator.hardware.options import Options

_FLOAT32, _INT32 = jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)
_FORWARD: Final = Kernel("linear_cross_entropy_forward", linear_cross_entropy_forward)
_BACKWARD: Final = Kernel("linear_cross_entropy_backward", linear_cross_entropy_backward)
# The kernels for several target ids per position.
_FORWARD_OF_IDS: Final = Kernel("linear_token_scores_forward", linear_token_scores_forward)
_BACKWARD_OF_IDS: Final = Kernel("linear_token_scores_backward", linear_token_scores_backward)
# Rows that only the backward takes.
_BACKWARD_ARRAYS: Final = ("maximum", "log_sum", "entropy", "grad_lse", "grad_logprob", "grad_entropy")


@dataclass(frozen=True)
class LinearRecipe:
    """The options that are compiled into the kernels.

    Attributes:
        caller: the name that errors begin with.
        is_loss: whether the kernel computes a loss; otherwise it computes log-probabilities, without options of the
            loss.
        options: the options of the loss.
        logit_scale: the factor of the logits before softcap and temperature.
        compute_dtype: the name of the type to which operands are rounded; None: all operands have the same type.
        weight_layout: ``"vd"`` or ``"dv"``.
        wanted: the results that the forward computes; maximum and log-sum are always among them.
        simulator: the options of the simulator; None on the real NKI.
    """

    caller: str
    is_loss: bool
    options: LossOptions
    logit_scale: float
    compute_dtype: str | None
    weight_layout: str
    wanted: Wanted
    simulator: Options | None

    def constants(self, of_ids: bool) -> dict[str, Any]:
        """Return the keyword arguments that are compiled into both kernels, forward and backward.

        Their ``ignore_index`` is ``IGNORED``, which replaces the target of every ignored position.

        Args:
            of_ids: whether the kernels take K ids per position; such kernels have no options of the loss.
        """
        constants: dict[str, Any] = {
            "weight_layout": self.weight_layout,
            "ignore_index": IGNORED,
            "logit_softcap": self.options.logit_softcap,
            "temperature": self.options.temperature,
            "logit_scale": self.logit_scale,
            "compute_dtype": None if self.compute_dtype is None else TILE_DTYPES[jnp.dtype(self.compute_dtype)],
        }
        if not of_ids:
            constants["label_smoothing"] = self.options.label_smoothing
            constants["lse_square_scale"] = self.options.lse_square_scale
        return constants


@dataclass(frozen=True)
class Needed:
    """Flags: whether the hidden states, the output layer's weight and its bias need a gradient."""

    input: bool
    weight: bool
    bias: bool


def _arrays(rows: Arrays, shared: Arrays) -> dict[str, jax.Array | None]:
    return {
        "input_hbm": rows["input"],
        "weight_hbm": shared["linear_weight"],
        "targets_hbm": rows["target"],
        "bias_hbm": shared["linear_bias"],
        "class_weight_hbm": shared["class_weight"],
        "temperature_hbm": rows["temperature"],
    }


def launched_forward(recipe: LinearRecipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the forward kernel and return its results by name.

    Args:
        recipe: the compiled options.
        rows: ``input`` [N, D]; ``target`` int32, each a class or ``IGNORED``, [N], or [N, K] for K ids per position;
            ``temperature``, [N] float32 or None.
        shared: ``linear_weight``, [V, D] or [D, V] by ``recipe.weight_layout``; ``linear_bias`` and ``class_weight``,
            [V] float32 or None.

    Returns:
        ``loss`` (with K ids, ``logprob`` [N, K] instead), ``lse``, ``maximum`` and ``log_sum``; and, if wanted,
        ``target_logit``, ``position_weight``, ``argmax``, ``entropy``, ``log_sum_squares`` and ``mean_logit``. All are
        [N] float32 except ``logprob``, and ``argmax``, which is int32.
    """
    input, target, wanted = required(rows, "input"), required(rows, "target"), recipe.wanted
    positions, of_ids = input.shape[:1], target.ndim == 2
    names = ["logprob" if of_ids else "loss", "lse"]
    names += ["target_logit", "position_weight"] if wanted.target else []
    names += [name for name in ("argmax", "entropy") if getattr(wanted, name)] + ["maximum", "log_sum"]
    names += [name for name in ("log_sum_squares", "mean_logit") if getattr(wanted, name)]
    results = {name: Result(positions, _INT32 if name == "argmax" else _FLOAT32) for name in names}
    if of_ids:
        results["logprob"] = Result(target.shape, _FLOAT32)
    if target.size == 0:  # a kernel needs a position
        return {name: jnp.zeros(result.shape, result.dtype) for name, result in results.items()}
    flags = ("target", "argmax", "entropy", "log_sum", "log_sum_squares", "mean_logit")
    return launch(
        _FORWARD_OF_IDS if of_ids else _FORWARD,
        _arrays(rows, shared),
        {**recipe.constants(of_ids), **{f"with_{name}": getattr(wanted, name) for name in flags}},
        results,
        recipe.simulator,
    )


def launched_backward(recipe: LinearRecipe, needed: Needed, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the backward kernel and return the needed gradients by the name of the array.

    The gradients of ``input`` and ``linear_weight`` have the shapes and types of these arrays; the gradient of
    ``linear_bias`` is [V] float32.

    Args:
        recipe: the compiled options of the forward.
        needed: flags of the needed gradients, of which at least one is set.
        rows: the rows of :func:`launched_forward`, and these [N] float32 arrays:

            - ``maximum``, ``log_sum``: results of the forward;
            - ``grad_loss``, ``grad_lse``, ``grad_logprob``, ``grad_entropy``: upstream gradients, at least one not
              None; with K ids, ``grad_loss`` is not read, and ``grad_logprob`` is [N, K];
            - ``entropy``: the forward's ``entropy`` if ``grad_entropy`` is given, else None.
        shared: see :func:`launched_forward`.
    """
    of_all = {"input": rows["input"], "linear_weight": shared["linear_weight"], "linear_bias": shared["linear_bias"]}
    wanted = {"input": needed.input, "linear_weight": needed.weight, "linear_bias": needed.bias}
    results = {
        name: Result(array.shape, array.dtype) for name, array in of_all.items() if array is not None and wanted[name]
    }
    target, lse = required(rows, "target"), required(rows, "maximum") + required(rows, "log_sum")
    if target.size == 0:
        return {name: jnp.zeros(result.shape, result.dtype) for name, result in results.items()}
    of_ids = target.ndim == 2
    further = {f"{name}_hbm": rows[name] for name in (*_BACKWARD_ARRAYS, *(() if of_ids else ("grad_loss",)))}
    flags = {
        "grad_input_wanted": needed.input,
        "grad_weight_wanted": needed.weight,
        "grad_bias_wanted": needed.bias,
    }
    return launch(
        _BACKWARD_OF_IDS if of_ids else _BACKWARD,
        {**_arrays(rows, shared), "lse_hbm": lse, **further},
        {**recipe.constants(of_ids), **flags},
        results,
        recipe.simulator,
    )


@dataclass(frozen=True)
class Saved:
    """The values that the forward saves for the backward.

    Attributes:
        input: [N, D].
        linear_weight: [V, D] or [D, V], by the layout of the recipe.
        target: int32, as :func:`.arguments.class_indices` returns them, [N] or [N, K].
        linear_bias, class_weight: [V] float32, or None.
        temperature: [N] float32, or None.
        maximum, log_sum: [N] float32.
        entropy: [N] float32; None if it was not computed.
        needed: the array of :func:`.saved_flags` that encodes the needed gradients.
    """

    input: jax.Array
    linear_weight: jax.Array
    target: jax.Array
    linear_bias: jax.Array | None
    class_weight: jax.Array | None
    temperature: jax.Array | None
    maximum: jax.Array
    log_sum: jax.Array
    entropy: jax.Array | None
    needed: jax.Array


# JAX treats it as a container of arrays.
jax.tree_util.register_dataclass(Saved)

# A function of the arrays of rows and of the shared arrays.
_Launch = Callable[[Arrays, Arrays], dict[str, jax.Array]]
# The names of the results that have upstream gradients.
_UPSTREAM: Final = ("loss", "lse", "logprob", "entropy")


def _launched(recipe: LinearRecipe, needed: Needed | None, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the forward if ``needed`` is None, else the backward, and return the results.

    Under ``jax.vmap`` there is one launch for all examples. A backward that computes the gradient of weight or bias,
    which is a sum over the rows of one example, has a launch for each example.
    """
    if needed is None:
        call: _Launch = partial(launched_forward, recipe)
        return batched_by_rows(call)(rows, shared)
    batched = batched_by_example if needed.weight or needed.bias else batched_by_rows
    return batched(partial(launched_backward, recipe, needed))(rows, shared)


def _refuse_second(recipe: LinearRecipe, needed: Needed | None, rows: Arrays, shared: Arrays) -> NoReturn:
    raise NotImplementedError(
        f"{recipe.caller}: the gradients have no derivative here, neither forward nor reverse; for second derivatives "
        f"multiply, and use jax.nn.log_softmax"
    )


# The results of a kernel, with a derivative that raises an error: without it, the error would come from a callback.
_kernel_results: Final = jax.custom_vjp(_launched, nondiff_argnums=(0, 1))
_kernel_results.defvjp(_refuse_second, _refuse_second)


def _kernel_target(target: jax.Array) -> jax.Array:
    # Class 0 in place of an index out of range; NaN replaces the results of these rows later.
    return jnp.where(target == OUT_OF_RANGE, 0, target)


def _shared(linear_weight: jax.Array, linear_bias: jax.Array | None, class_weight: jax.Array | None) -> Arrays:
    return {"linear_weight": linear_weight, "linear_bias": linear_bias, "class_weight": class_weight}


def _results(
    recipe: LinearRecipe,
    input: jax.Array,
    linear_weight: jax.Array,
    target: jax.Array,
    linear_bias: jax.Array | None,
    class_weight: jax.Array | None,
    temperature: jax.Array | None,
) -> dict[str, jax.Array]:
    """Return the results of the forward kernel by name.

    ``logprob`` replaces the kernel's ``target_logit`` if that is wanted; else, in a recipe for scores, it replaces the
    kernel's ``loss``, which is -logprob. Loss and ``logprob`` of targets out of range are NaN.
    """
    rows = {"input": input, "target": _kernel_target(target), "temperature": temperature}
    results = _kernel_results(recipe, None, rows, _shared(linear_weight, linear_bias, class_weight))
    if recipe.wanted.target:
        logprob = (results.pop("target_logit") - results["maximum"]) - results["log_sum"]
        results["logprob"] = jnp.where(target == IGNORED, 0.0, logprob)
    elif not recipe.is_loss and "loss" in results:
        results["logprob"] = 0.0 - results.pop("loss")  # a difference, for the negative of 0 has a sign
    is_wrong = target == OUT_OF_RANGE
    return {
        name: jnp.where(is_wrong, jnp.nan, values) if name in ("loss", "logprob") else values
        for name, values in results.items()
    }


def _forward(
    recipe: LinearRecipe,
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    class_weight: Any,
    temperature: Any,
) -> tuple[dict[str, jax.Array], Saved]:
    """Return the results, and the values that the backward needs: the forward of ``jax.custom_vjp``.

    With ``symbolic_zeros``, each argument has a ``value``, and ``perturbed``: whether it is differentiated.
    """
    needed = Needed(input.perturbed, linear_weight.perturbed, linear_bias is not None and linear_bias.perturbed)
    if class_weight is not None and class_weight.perturbed:
        raise NotImplementedError(
            f"{recipe.caller}: weight is differentiated by, and there is no derivative by class weights; pass "
            f"jax.lax.stop_gradient(weight)"
        )
    refuse_temperature_derivative(recipe.caller, temperature)
    bias, weights, divisors = (
        None if argument is None else argument.value for argument in (linear_bias, class_weight, temperature)
    )
    results = _results(recipe, input.value, linear_weight.value, target.value, bias, weights, divisors)
    saved = Saved(
        input=input.value,
        linear_weight=linear_weight.value,
        target=target.value,
        linear_bias=bias,
        class_weight=weights,
        temperature=divisors,
        maximum=results["maximum"],
        log_sum=results["log_sum"],
        entropy=results.get("entropy"),
        needed=saved_flags(needed.input, needed.weight, needed.bias),
    )
    return results, saved


def _backward(recipe: LinearRecipe, saved: Saved, grads: Mapping[str, Any]) -> tuple[jax.Array | None, ...]:
    """Return the gradients of input, weight, target, bias, class weights and temperatures: the backward of
    ``jax.custom_vjp``.

    A gradient that is not needed is None. ``grads`` has the upstream gradients by the name of the result.
    """
    upstream: dict[str, jax.Array | None] = {
        name: None if name not in grads or isinstance(grads[name], SymbolicZero) else grads[name] for name in _UPSTREAM
    }
    needed = Needed(*flags_of(saved.needed))
    if needed == Needed(False, False, False) or all(grad is None for grad in upstream.values()):
        return None, None, None, None, None, None
    of_logprob = upstream["logprob"]
    if not recipe.is_loss and saved.target.ndim == 1 and of_logprob is not None:
        # As the negative of a loss, whose gradient costs nothing more.
        upstream.update(loss=-of_logprob, logprob=None)
    is_wrong = saved.target == OUT_OF_RANGE
    for name in ("loss", "logprob"):
        gradient = upstream[name]
        if gradient is not None:
            upstream[name] = jnp.where(is_wrong, jnp.nan, gradient)
    rows = {
        "input": saved.input,
        "target": _kernel_target(saved.target),
        "temperature": saved.temperature,
        "maximum": saved.maximum,
        "log_sum": saved.log_sum,
        "entropy": None if upstream["entropy"] is None else saved.entropy,
        **{f"grad_{name}": values for name, values in upstream.items()},
    }
    shared = _shared(saved.linear_weight, saved.linear_bias, saved.class_weight)
    results = _kernel_results(recipe, needed, rows, shared)
    return results.get("input"), results.get("linear_weight"), None, results.get("linear_bias"), None, None


# From the recipe, hidden states [N, D], the weight, targets, bias, class weights and temperatures to results by name,
# [N] each but for logprob of K ids, [N, K]: the loss, or of scores logprob; lse, maximum, log_sum and what the recipe
# wants.
_results_of_rows: Final = jax.custom_vjp(_results, nondiff_argnums=(0,))
_results_of_rows.defvjp(_forward, _backward, symbolic_zeros=True)


def _classes(recipe: LinearRecipe, linear_weight: jax.Array) -> int:
    return linear_weight.shape[0 if recipe.weight_layout == CLASSES_FIRST else 1]


def computed_rows(
    recipe: LinearRecipe,
    input: jax.Array,
    linear_weight: jax.Array,
    target: jax.Array,
    linear_bias: jax.Array | None,
    class_weight: jax.Array | None = None,
    temperature: jax.Array | None = None,
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Return the results by name, [N] or [N, K], and the targets as int32 class indices, [N] or [N, K].

    Args:
        recipe: the compiled options.
        input: [..., D].
        linear_weight: [V, D] or [D, V], by ``recipe.weight_layout``.
        target: class indices, [...], or [..., K].
        linear_bias, class_weight: [V] floating, or None.
        temperature: floating, as :func:`.arguments.check_temperatures` takes it, or None.
    """
    positions = prod(input.shape[:-1])
    classes = jnp.asarray(class_indices(target, recipe.options.ignore_index, _classes(recipe, linear_weight)))
    arrays = differing_alike(
        {
            "input": as_rows(input, -1),
            "linear_weight": linear_weight,
            "target": classes.reshape(positions, *classes.shape[input.ndim - 1 :]),
            "linear_bias": None if linear_bias is None else linear_bias.astype(jnp.float32),
            "class_weight": None if class_weight is None else class_weight.astype(jnp.float32),
            "temperature": temperature_rows(temperature, input.shape[:-1]),
        }
    )
    return _results_of_rows(recipe, *arrays.values()), arrays["target"]
