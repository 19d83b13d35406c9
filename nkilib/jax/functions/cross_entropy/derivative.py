# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The row-wise loss and its derivative, for ``jax.grad``. The kernels compute gradients of the logits, XLA those of
class probabilities and of their class weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from nkilib.jax.dispatch.batching import Arrays, batched_by_rows
from nkilib.jax.dispatch.saved_flags import flags_of, saved_flags
from nkilib.jax.functions.cross_entropy import kernels
from nkilib.jax.functions.cross_entropy.kernels import Recipe
from nkilib.jax.functions.cross_entropy.soft_targets import scaled_distances, target_gradient, weight_gradient
from nkilib.jax.functions.cross_entropy.targets import IGNORED, OUT_OF_RANGE

_NAME: Final = "cross_entropy"


@dataclass(frozen=True)
class Needed:
    """The arguments of the loss whose gradients are needed."""

    logits: bool
    target: bool
    class_weight: bool


@dataclass(frozen=True)
class Saved:
    """The values that the forward saves for the backward.

    Attributes:
        logits: [N, V].
        target: [N] int32, as ``targets.class_indices`` gives them, or [N, V] class probabilities.
        class_weight: [V] float32, or None.
        maximum, log_sum: [N] float32.
        target_weight: [N] float32, the forward's position_weight, for class probabilities; else None.
        entropy: [N] float32; None where it was not requested.
        needed: flags of the needed gradients, from ``saved_flags``.
    """

    logits: jax.Array
    target: jax.Array
    class_weight: jax.Array | None
    maximum: jax.Array
    log_sum: jax.Array
    target_weight: jax.Array | None
    entropy: jax.Array | None
    needed: jax.Array


# JAX treats it as a container of arrays.
jax.tree_util.register_dataclass(Saved)

# ``kernels.forward`` or ``kernels.backward``.
KernelCall = Callable[[Recipe, Arrays, Arrays], dict[str, jax.Array]]


def is_soft(target: jax.Array) -> bool:
    """Tell whether targets are class probabilities."""
    return jnp.issubdtype(target.dtype, jnp.floating)


def _launched(call: KernelCall, recipe: Recipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    return batched_by_rows(partial(call, recipe))(rows, shared)


def _refuse_second(call: KernelCall, recipe: Recipe, rows: Arrays, shared: Arrays) -> NoReturn:
    raise NotImplementedError(
        f"{_NAME}: the gradient of the loss has no derivative here, neither forward nor reverse; for second "
        f"derivatives use optax.softmax_cross_entropy_with_integer_labels"
    )


# The results of a kernel, with a derivative that raises an error: without it, the error would come from a callback.
_kernel_results: Final = jax.custom_vjp(_launched, nondiff_argnums=(0, 1))
_kernel_results.defvjp(_refuse_second, _refuse_second)


def _results(
    recipe: Recipe, logits: jax.Array, target: jax.Array, class_weight: jax.Array | None
) -> dict[str, jax.Array]:
    """Return the results of the forward kernel, with the log-probability of the target in place of its logit."""
    rows = {"logits": logits, "target": _kernel_target(target)}
    results = _kernel_results(kernels.forward, recipe, rows, {"class_weight": class_weight})
    target_logit = results.pop("target_logit")
    if is_soft(target):
        return results
    logprob = jnp.where(target == IGNORED, 0.0, (target_logit - results["maximum"]) - results["log_sum"])
    is_wrong = target == OUT_OF_RANGE
    return {**results, "loss": _nan_where(is_wrong, results["loss"]), "logprob": _nan_where(is_wrong, logprob)}


def _kernel_target(target: jax.Array) -> jax.Array:
    """Replace class indices out of range by a class that exists, for the kernels; the results of these rows are
    replaced by NaN later.
    """
    return target if is_soft(target) else jnp.where(target == OUT_OF_RANGE, 0, target)


def _nan_where(is_wrong: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(is_wrong, jnp.nan, values)


def _forward(recipe: Recipe, logits: Any, target: Any, class_weight: Any) -> tuple[dict[str, jax.Array], Saved]:
    """Compute the results and the saved values.

    With ``symbolic_zeros``, JAX tells which arguments are differentiated.
    """
    weight = None if class_weight is None else class_weight.value
    needed = Needed(logits.perturbed, target.perturbed, class_weight is not None and class_weight.perturbed)
    if needed.class_weight and not is_soft(target.value):
        raise NotImplementedError(
            f"{_NAME}: weight is differentiated by, and there is a derivative by class weights for class probabilities "
            f"only; pass jax.lax.stop_gradient(weight)"
        )
    results = _results(recipe, logits.value, target.value, weight)
    target_weight = results["position_weight"] if is_soft(target.value) else None
    saved = Saved(
        logits=logits.value,
        target=target.value,
        class_weight=weight,
        maximum=results["maximum"],
        log_sum=results["log_sum"],
        target_weight=target_weight,
        entropy=results.get("entropy"),
        needed=saved_flags(needed.logits, needed.target, needed.class_weight),
    )
    return results, saved


def _backward(recipe: Recipe, saved: Saved, grads: dict[str, Any]) -> tuple[jax.Array | None, ...]:
    """Compute the gradients of logits, target and class weights; None for no gradient."""
    upstream = {
        name: None if name not in grads or isinstance(grads[name], SymbolicZero) else grads[name]
        for name in ("loss", "lse", "logprob", "entropy")
    }
    grad_loss = jnp.zeros_like(saved.maximum) if upstream["loss"] is None else upstream["loss"]
    needed = Needed(*flags_of(saved.needed))
    grad_target = grad_weight = None
    if needed.target or needed.class_weight:
        distances = scaled_distances(saved.logits, saved.maximum, saved.log_sum, grad_loss, recipe.options)
        if needed.target:
            grad_target = target_gradient(distances, saved.class_weight, recipe.options).astype(saved.target.dtype)
        if needed.class_weight:
            grad_weight = weight_gradient(distances, saved.target, recipe.options)
    if not needed.logits or all(grad is None for grad in upstream.values()):
        return None, grad_target, grad_weight
    if not is_soft(saved.target):
        grad_loss = _nan_where(saved.target == OUT_OF_RANGE, grad_loss)
    rows = {
        "logits": saved.logits,
        "target": _kernel_target(saved.target),
        "maximum": saved.maximum,
        "log_sum": saved.log_sum,
        "target_weight": saved.target_weight,
        "grad_loss": grad_loss,
        "grad_lse": upstream["lse"],
        "grad_logprob": upstream["logprob"],
        "entropy": None if upstream["entropy"] is None else saved.entropy,
        "grad_entropy": upstream["entropy"],
    }
    results = _kernel_results(kernels.backward, recipe, rows, {"class_weight": saved.class_weight})
    return results["grad_logits"], grad_target, grad_weight


# From the recipe, logits [N, V], targets and class weights to the forward's results by name, [N] each: loss, lse,
# logprob (not of class probabilities), position_weight, maximum, log_sum, and with outputs argmax and entropy.
loss_of_rows: Final = jax.custom_vjp(_results, nondiff_argnums=(0,))
loss_of_rows.defvjp(_forward, _backward, symbolic_zeros=True)
