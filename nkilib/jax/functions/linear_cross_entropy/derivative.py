# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and scores of rows from hidden states, and their derivative, for ``jax.grad``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from nkilib.jax.dispatch.batching import Arrays, batched_by_example, batched_by_rows
from nkilib.jax.dispatch.saved_flags import flags_of, saved_flags
from nkilib.jax.functions.cross_entropy.targets import IGNORED, OUT_OF_RANGE
from nkilib.jax.functions.linear_cross_entropy import kernels
from nkilib.jax.functions.linear_cross_entropy.kernels import LinearRecipe, Needed


@dataclass(frozen=True)
class Saved:
    """The values that the forward saves for the backward.

    Attributes:
        input: [N, D].
        linear_weight: the output layer, in its layout.
        target: int32, as ``targets.class_indices`` gives them.
        linear_bias, class_weight: [V] float32, or None.
        maximum, log_sum: [N] float32.
        entropy: [N] float32; None where it was not requested.
        needed: flags of the needed gradients, from ``saved_flags``.
    """

    input: jax.Array
    linear_weight: jax.Array
    target: jax.Array
    linear_bias: jax.Array | None
    class_weight: jax.Array | None
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

    Gradients of the output layer are sums over the rows of an example, so ``jax.vmap`` then launches once per example.
    """
    if needed is None:
        call: _Launch = partial(kernels.forward, recipe)
        return batched_by_rows(call)(rows, shared)
    batched = batched_by_example if needed.weight or needed.bias else batched_by_rows
    return batched(partial(kernels.backward, recipe, needed))(rows, shared)


def _refuse_second(recipe: LinearRecipe, needed: Needed | None, rows: Arrays, shared: Arrays) -> NoReturn:
    raise NotImplementedError(
        f"{recipe.caller}: the gradients have no derivative here, neither forward nor reverse; for second derivatives "
        f"multiply, and use jax.nn.log_softmax"
    )


# The results of a kernel, with a derivative that raises an error: without it, the error would come from a callback.
_kernel_results: Final = jax.custom_vjp(_launched, nondiff_argnums=(0, 1))
_kernel_results.defvjp(_refuse_second, _refuse_second)


def _results(
    recipe: LinearRecipe,
    input: jax.Array,
    linear_weight: jax.Array,
    target: jax.Array,
    linear_bias: jax.Array | None,
    class_weight: jax.Array | None,
) -> dict[str, jax.Array]:
    """Return the results of the forward kernel, with the log-probability of the target in place of its logit."""
    rows = {"input": input, "target": _kernel_target(target)}
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


def _kernel_target(target: jax.Array) -> jax.Array:
    """Replace class indices out of range by a class that exists, for the kernels; the results of these rows are
    replaced by NaN later.
    """
    return jnp.where(target == OUT_OF_RANGE, 0, target)


def _shared(linear_weight: jax.Array, linear_bias: jax.Array | None, class_weight: jax.Array | None) -> Arrays:
    return {"linear_weight": linear_weight, "linear_bias": linear_bias, "class_weight": class_weight}


def _forward(
    recipe: LinearRecipe, input: Any, linear_weight: Any, target: Any, linear_bias: Any, class_weight: Any
) -> tuple[dict[str, jax.Array], Saved]:
    """Compute the results and the saved values.

    With ``symbolic_zeros``, JAX tells which arguments are differentiated.
    """
    needed = Needed(input.perturbed, linear_weight.perturbed, linear_bias is not None and linear_bias.perturbed)
    if class_weight is not None and class_weight.perturbed:
        raise NotImplementedError(
            f"{recipe.caller}: weight is differentiated by, and there is no derivative by class weights; pass "
            f"jax.lax.stop_gradient(weight)"
        )
    bias, weights = (None if argument is None else argument.value for argument in (linear_bias, class_weight))
    results = _results(recipe, input.value, linear_weight.value, target.value, bias, weights)
    saved = Saved(
        input=input.value,
        linear_weight=linear_weight.value,
        target=target.value,
        linear_bias=bias,
        class_weight=weights,
        maximum=results["maximum"],
        log_sum=results["log_sum"],
        entropy=results.get("entropy"),
        needed=saved_flags(needed.input, needed.weight, needed.bias),
    )
    return results, saved


def _backward(recipe: LinearRecipe, saved: Saved, grads: Mapping[str, Any]) -> tuple[jax.Array | None, ...]:
    """Compute the gradients of input, weight, target, bias and class weights; None for no gradient."""
    upstream: dict[str, jax.Array | None] = {
        name: None if name not in grads or isinstance(grads[name], SymbolicZero) else grads[name] for name in _UPSTREAM
    }
    needed = Needed(*flags_of(saved.needed))
    if needed == Needed(False, False, False) or all(grad is None for grad in upstream.values()):
        return None, None, None, None, None
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
        "maximum": saved.maximum,
        "log_sum": saved.log_sum,
        "entropy": None if upstream["entropy"] is None else saved.entropy,
        **{f"grad_{name}": values for name, values in upstream.items()},
    }
    shared = _shared(saved.linear_weight, saved.linear_bias, saved.class_weight)
    results = _kernel_results(recipe, needed, rows, shared)
    return results.get("input"), results.get("linear_weight"), None, results.get("linear_bias"), None


# From the recipe, hidden states [N, D], the weight, targets, bias and class weights to results by name, [N] each
# but for logprob of K ids, [N, K]: the loss, or of scores logprob; lse, maximum, log_sum and what the recipe wants.
results_of_rows: Final = jax.custom_vjp(_results, nondiff_argnums=(0,))
results_of_rows.defvjp(_forward, _backward, symbolic_zeros=True)
