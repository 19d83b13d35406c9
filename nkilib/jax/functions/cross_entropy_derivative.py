# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cross-entropy of rows of logits, one row for each position, and its derivative for ``jax.grad``.

:func:`loss_of_rows` computes the results of a :class:`Recipe`. :func:`launched_forward` and :func:`launched_backward`
launch the kernels. Targets are class indices, as :func:`.arguments.class_indices` returns them, or class probabilities.

Kernels compute the loss and the gradient of the logits. XLA computes the gradients of class probabilities and of class
weights, which takes several times the memory of the logits, and only if such a gradient is needed.

N positions, V classes. ``rows`` holds the arrays with an entry for each position; ``shared`` holds the class weights,
which all positions share. Temperatures are in ``rows`` if they are an array; if that entry is None, the temperature in
the options divides the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from nkilib.core.host.options import values_of
from nkilib.experimental.loss import choose_tiling, extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.launch import LossOptions
from nkilib.jax.derivatives import flags_of, saved_flags
from nkilib.jax.functions.arguments import CALLER, IGNORED, OUT_OF_RANGE, TILE_DTYPES, refuse_temperature_derivative
from nkilib.jax.launching import Kernel, Result, launch
from nkilib.jax.rows import Arrays, batched_by_rows, required
from nkilib.simulator.hardware.options import Options

_FLOAT32, _INT32 = jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)
_FORWARD: Final = Kernel("cross_entropy_forward", extended_cross_entropy_forward)
_BACKWARD: Final = Kernel("cross_entropy_backward", extended_cross_entropy_backward)
# Options that only the forward has, and rows that only the backward takes.
_FORWARD_OPTIONS: Final = ("exact_maximum",)
_BACKWARD_ARRAYS: Final = (
    *("maximum", "log_sum", "entropy", "target_weight"),
    *("grad_loss", "grad_lse", "grad_logprob", "grad_entropy"),
)


@dataclass(frozen=True)
class Recipe:
    """The options that are compiled into the kernels.

    Attributes:
        options: the options of the loss.
        with_outputs: whether argmax and entropy are computed beside the loss.
        simulator: the options of the simulator; None on the real NKI.
    """

    options: LossOptions
    with_outputs: bool
    simulator: Options | None

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The keyword arguments that are compiled into both kernels, forward and backward.

        Their ``ignore_index`` is ``IGNORED``, which replaces the target of every ignored position.
        """
        values = {**values_of(self.options), "ignore_index": IGNORED}
        return {name: value for name, value in values.items() if name not in _FORWARD_OPTIONS}

    @cached_property
    def forward_constants(self) -> dict[str, Any]:
        """The keyword arguments that are compiled into the forward kernel: :attr:`constants`, and the options of the
        forward only.
        """
        return {**self.constants, **{name: getattr(self.options, name) for name in _FORWARD_OPTIONS}}


def _arrays(rows: Arrays, shared: Arrays) -> dict[str, jax.Array | None]:
    return {
        "logits_hbm": rows["logits"],
        "targets_hbm": rows["target"],
        "class_weight_hbm": shared["class_weight"],
        "temperature_hbm": rows["temperature"],
    }


def _cut(logits: jax.Array, direction: str) -> Mapping[str, Any]:
    """Return the keyword arguments that set the tiling and the tile type of a kernel for these logits.

    Args:
        logits: [N, V].
        direction: ``"forward"`` or ``"backward"``.
    """
    positions, classes = logits.shape
    tiling = choose_tiling(positions, classes, logits.dtype, direction, extended=True)
    return {**tiling._asdict(), "dtype": TILE_DTYPES[logits.dtype]}


def launched_forward(recipe: Recipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the forward kernel and return its results by name, all [N].

    Args:
        recipe: the compiled options.
        rows: ``logits`` [N, V]; ``target``, [N] int32, each a class or ``IGNORED``, or [N, V] class probabilities;
            ``temperature``, [N] float32 or None.
        shared: ``class_weight``, [V] float32 or None.

    Returns:
        ``loss``, ``lse``, ``target_logit``, ``position_weight``, ``maximum`` and ``log_sum``, float32; if
        ``recipe.with_outputs``, also ``argmax``, int32, and ``entropy``, float32.
    """
    logits = required(rows, "logits")
    names = ["loss", "lse", "target_logit", "position_weight"]
    names += [*(["argmax", "entropy"] if recipe.with_outputs else []), "maximum", "log_sum"]
    results = {name: Result(logits.shape[:1], _INT32 if name == "argmax" else _FLOAT32) for name in names}
    if logits.size == 0:  # a kernel needs an element
        return {name: jnp.zeros(result.shape, result.dtype) for name, result in results.items()}
    constants = {"with_argmax": recipe.with_outputs, "with_entropy": recipe.with_outputs, "with_log_sum": True}
    return launch(
        _FORWARD,
        _arrays(rows, shared),
        {**recipe.forward_constants, **_cut(logits, "forward"), **constants},
        results,
        recipe.simulator,
    )


def launched_backward(recipe: Recipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the backward kernel and return ``grad_logits``, the gradient of the logits, [N, V] in the type of the
    logits.

    Args:
        recipe: the compiled options of the forward.
        rows: the rows of :func:`launched_forward`, and these [N] float32 arrays:

            - ``maximum``, ``log_sum``: results of the forward;
            - ``grad_loss``, ``grad_lse``, ``grad_logprob``, ``grad_entropy``: upstream gradients; the last three may be
              None;
            - ``target_weight``: the forward's ``position_weight`` for class probabilities, None for class indices;
            - ``entropy``: the forward's ``entropy`` if ``grad_entropy`` is given, else None.
        shared: see :func:`launched_forward`.
    """
    logits = required(rows, "logits")
    if logits.size == 0:
        return {"grad_logits": jnp.zeros_like(logits)}
    lse = required(rows, "maximum") + required(rows, "log_sum")
    further = {f"{name}_hbm": rows[name] for name in _BACKWARD_ARRAYS}
    return launch(
        _BACKWARD,
        {**_arrays(rows, shared), "lse_hbm": lse, **further},
        {**recipe.constants, **_cut(logits, "backward")},
        {"grad_logits": Result(logits.shape, logits.dtype)},
        recipe.simulator,
    )


@dataclass(frozen=True)
class Needed:
    """Flags: whether the logits, the targets and the class weights need a gradient."""

    logits: bool
    target: bool
    class_weight: bool


@dataclass(frozen=True)
class Saved:
    """The values that the forward saves for the backward.

    Attributes:
        logits: [N, V].
        target: [N] int32, as :func:`class_indices` returns them, or [N, V] class probabilities.
        class_weight: [V] float32, or None.
        temperature: [N] float32, or None.
        maximum, log_sum: [N] float32.
        target_weight: [N] float32, the forward's ``position_weight``, for class probabilities; else None.
        entropy: [N] float32; None if it was not computed.
        needed: the array of :func:`.saved_flags` that encodes the needed gradients.
    """

    logits: jax.Array
    target: jax.Array
    class_weight: jax.Array | None
    temperature: jax.Array | None
    maximum: jax.Array
    log_sum: jax.Array
    target_weight: jax.Array | None
    entropy: jax.Array | None
    needed: jax.Array


# JAX treats it as a container of arrays.
jax.tree_util.register_dataclass(Saved)


def _scaled_distances(saved: Saved, grad_loss: jax.Array, options: LossOptions) -> jax.Array:
    """Return ``grad_loss * (lse - z)``, [N, V] float32, which the gradients of class probabilities and weights contain.

    z are the logits after softcap and temperature, and lse is the log-sum-exp of z.

    Args:
        saved: the values that the forward saved.
        grad_loss: [N] float32, the upstream gradient of every position's loss.
        options: the options of the loss.
    """
    z, softcap, log_sum = saved.logits.astype(jnp.float32), options.logit_softcap, saved.log_sum
    if softcap is not None:
        z = jnp.where(jnp.isneginf(z), z, softcap * jnp.tanh(z / softcap))
    # Temperatures of positions are inverted as in the kernel: without a cap, its maximum is the same product.
    z = z / options.temperature if saved.temperature is None else z * (1.0 / saved.temperature)[:, None]
    log_sum = log_sum + 0.0 * log_sum  # NaN where it is infinite: the row has no softmax
    return ((saved.maximum[:, None] - z) + log_sum[:, None]) * grad_loss[:, None]  # large logits cancel exactly


def _target_gradient(distances: jax.Array, class_weight: jax.Array | None, options: LossOptions) -> jax.Array:
    """Return the gradient of the class probabilities, [N, V] float32.

    Args:
        distances: the result of :func:`_scaled_distances`.
        class_weight: [V] float32; None means 1.
        options: the options of the loss.
    """
    weighted = distances if class_weight is None else distances * class_weight
    return (1.0 - options.label_smoothing) * weighted


def _weight_gradient(distances: jax.Array, target: jax.Array, options: LossOptions) -> jax.Array:
    """Return the gradient of the class weights, [V] float32.

    Args:
        distances: the result of :func:`_scaled_distances`.
        target: [N, V] class probabilities.
        options: the options of the loss.
    """
    kept, spread = 1.0 - options.label_smoothing, options.label_smoothing / target.shape[1]
    return ((kept * target.astype(jnp.float32) + spread) * distances).sum(0)


# :func:`launched_forward` or :func:`launched_backward`.
_KernelCall = Callable[[Recipe, Arrays, Arrays], dict[str, jax.Array]]


def _is_soft(target: jax.Array) -> bool:
    return jnp.issubdtype(target.dtype, jnp.floating)


def _launched(call: _KernelCall, recipe: Recipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    return batched_by_rows(partial(call, recipe))(rows, shared)


def _refuse_second(call: _KernelCall, recipe: Recipe, rows: Arrays, shared: Arrays) -> NoReturn:
    raise NotImplementedError(
        f"{CALLER}: the gradient of the loss has no derivative here, neither forward nor reverse; for second "
        f"derivatives use optax.softmax_cross_entropy_with_integer_labels"
    )


# The results of a kernel, with a derivative that raises an error: without it, the error would come from a callback.
_kernel_results: Final = jax.custom_vjp(_launched, nondiff_argnums=(0, 1))
_kernel_results.defvjp(_refuse_second, _refuse_second)


def _kernel_target(target: jax.Array) -> jax.Array:
    # Class 0 in place of an index out of range; NaN replaces the results of these rows later.
    return target if _is_soft(target) else jnp.where(target == OUT_OF_RANGE, 0, target)


def _nan_where(is_wrong: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(is_wrong, jnp.nan, values)


def _results(
    recipe: Recipe,
    logits: jax.Array,
    target: jax.Array,
    class_weight: jax.Array | None,
    temperature: jax.Array | None,
) -> dict[str, jax.Array]:
    """Return the results of the forward kernel by name.

    ``logprob`` replaces the kernel's ``target_logit``. Loss and ``logprob`` of targets out of range are NaN.
    """
    rows = {"logits": logits, "target": _kernel_target(target), "temperature": temperature}
    results = _kernel_results(launched_forward, recipe, rows, {"class_weight": class_weight})
    target_logit = results.pop("target_logit")
    if _is_soft(target):
        return results
    logprob = jnp.where(target == IGNORED, 0.0, (target_logit - results["maximum"]) - results["log_sum"])
    is_wrong = target == OUT_OF_RANGE
    return {**results, "loss": _nan_where(is_wrong, results["loss"]), "logprob": _nan_where(is_wrong, logprob)}


def _forward(
    recipe: Recipe, logits: Any, target: Any, class_weight: Any, temperature: Any
) -> tuple[dict[str, jax.Array], Saved]:
    """Return the results of the loss, and the values that the backward needs: the forward of ``jax.custom_vjp``.

    With ``symbolic_zeros``, each argument has a ``value``, and ``perturbed``: whether it is differentiated.
    """
    weight, divisors = (None if argument is None else argument.value for argument in (class_weight, temperature))
    needed = Needed(logits.perturbed, target.perturbed, class_weight is not None and class_weight.perturbed)
    if needed.class_weight and not _is_soft(target.value):
        raise NotImplementedError(
            f"{CALLER}: weight is differentiated by, and there is a derivative by class weights for class "
            f"probabilities only; pass jax.lax.stop_gradient(weight)"
        )
    refuse_temperature_derivative(CALLER, temperature)
    results = _results(recipe, logits.value, target.value, weight, divisors)
    target_weight = results["position_weight"] if _is_soft(target.value) else None
    saved = Saved(
        logits=logits.value,
        target=target.value,
        class_weight=weight,
        temperature=divisors,
        maximum=results["maximum"],
        log_sum=results["log_sum"],
        target_weight=target_weight,
        entropy=results.get("entropy"),
        needed=saved_flags(needed.logits, needed.target, needed.class_weight),
    )
    return results, saved


def _backward(recipe: Recipe, saved: Saved, grads: dict[str, Any]) -> tuple[jax.Array | None, ...]:
    """Return the gradients of logits, target, class weights and temperatures: the backward of ``jax.custom_vjp``.

    A gradient that is not needed is None. ``grads`` has the upstream gradients by the name of the result.
    """
    upstream = {
        name: None if name not in grads or isinstance(grads[name], SymbolicZero) else grads[name]
        for name in ("loss", "lse", "logprob", "entropy")
    }
    grad_loss = jnp.zeros_like(saved.maximum) if upstream["loss"] is None else upstream["loss"]
    needed = Needed(*flags_of(saved.needed))
    grad_target = grad_weight = None
    if needed.target or needed.class_weight:
        distances = _scaled_distances(saved, grad_loss, recipe.options)
        if needed.target:
            grad_target = _target_gradient(distances, saved.class_weight, recipe.options).astype(saved.target.dtype)
        if needed.class_weight:
            grad_weight = _weight_gradient(distances, saved.target, recipe.options)
    if not needed.logits or all(grad is None for grad in upstream.values()):
        return None, grad_target, grad_weight, None
    if not _is_soft(saved.target):
        grad_loss = _nan_where(saved.target == OUT_OF_RANGE, grad_loss)
    rows = {
        "logits": saved.logits,
        "target": _kernel_target(saved.target),
        "temperature": saved.temperature,
        "maximum": saved.maximum,
        "log_sum": saved.log_sum,
        "target_weight": saved.target_weight,
        "grad_loss": grad_loss,
        "grad_lse": upstream["lse"],
        "grad_logprob": upstream["logprob"],
        "entropy": None if upstream["entropy"] is None else saved.entropy,
        "grad_entropy": upstream["entropy"],
    }
    results = _kernel_results(launched_backward, recipe, rows, {"class_weight": saved.class_weight})
    return results["grad_logits"], grad_target, grad_weight, None


# From the recipe, logits [N, V], targets, class weights and temperatures to the forward's results by name, [N] each:
# loss, lse, logprob (not of class probabilities), position_weight, maximum, log_sum, and with outputs argmax and
# entropy.
loss_of_rows: Final = jax.custom_vjp(_results, nondiff_argnums=(0,))
loss_of_rows.defvjp(_forward, _backward, symbolic_zeros=True)
