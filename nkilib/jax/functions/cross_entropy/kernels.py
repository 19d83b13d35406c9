# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of the forward and the backward kernel. Rows are positions.

``rows`` have an entry for each position; ``shared`` holds the array that all positions share: the class weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp

from nkilib.core.host.options import values_of
from nkilib.experimental.loss import choose_tiling, extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.jax.dispatch.batching import Arrays, required
from nkilib.jax.dispatch.host_call import Result
from nkilib.jax.dispatch.launch import Kernel, launch
from nkilib.jax.functions.cross_entropy.targets import IGNORED
from nkilib.nki import nl
from nkilib.simulator.hardware.options import Options

# The types of logits that kernels take; tiles have the same type.
TILE_DTYPES: Final = {
    jnp.dtype(jnp.bfloat16): nl.bfloat16,
    jnp.dtype(jnp.float16): nl.float16,
    jnp.dtype(jnp.float32): nl.float32,
}

_FLOAT32, _INT32 = jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)
_FORWARD: Final = Kernel("cross_entropy_forward", extended_cross_entropy_forward)
# Options that the backward does not have.
_OF_FORWARD: Final = ("exact_maximum",)
_BACKWARD: Final = Kernel("cross_entropy_backward", extended_cross_entropy_backward)


@dataclass(frozen=True)
class Recipe:
    """The options that are compiled into the kernels.

    Attributes:
        options: the options of the loss.
        with_outputs: whether argmax and entropy are requested.
        simulator: the options of the simulator; None on the real NKI.
    """

    options: LossOptions
    with_outputs: bool
    simulator: Options | None

    @property
    def constants(self) -> dict[str, Any]:
        """The constant arguments of both kernels. Their ``ignore_index`` is the one int32 that replaces every ignored
        target.
        """
        values = {**values_of(self.options), "ignore_index": IGNORED}
        return {name: value for name, value in values.items() if name not in _OF_FORWARD}

    @property
    def forward_constants(self) -> dict[str, Any]:
        """The constant arguments of the forward."""
        return {**self.constants, **{name: getattr(self.options, name) for name in _OF_FORWARD}}


def forward(recipe: Recipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the forward kernel and return its results, [N] each.

    Args:
        recipe: the compiled options.
        rows: ``logits`` [N, V]; ``target``, [N] int32, each a class or ``IGNORED``, or [N, V] class probabilities.
        shared: ``class_weight``, [V] float32 or None.

    Returns:
        loss, lse, target_logit, position_weight, maximum and log_sum, float32, as the kernel names them; with outputs
        ``argmax``, int32, and ``entropy``, float32.
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


def backward(recipe: Recipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the backward kernel and return the gradient of the logits, ``grad_logits``, [N, V] in their type.

    Args:
        recipe: the compiled options of the forward.
        rows: see :func:`forward`, and [N] float32 each: ``maximum`` and ``log_sum`` of the forward; ``grad_loss``,
            ``grad_lse``, ``grad_logprob`` and ``grad_entropy``, None for no gradient, but the first is required;
            ``target_weight``, the forward's position_weight for class probabilities, else None; ``entropy`` of the
            forward, where it has a gradient.
        shared: see :func:`forward`.
    """
    logits = required(rows, "logits")
    if logits.size == 0:
        return {"grad_logits": jnp.zeros_like(logits)}
    lse = required(rows, "maximum") + required(rows, "log_sum")
    further = {f"{name}_hbm": rows[name] for name in _OF_BACKWARD}
    return launch(
        _BACKWARD,
        {**_arrays(rows, shared), "lse_hbm": lse, **further},
        {**recipe.constants, **_cut(logits, "backward")},
        {"grad_logits": Result(logits.shape, logits.dtype)},
        recipe.simulator,
    )


_OF_BACKWARD: Final = (
    *("maximum", "log_sum", "entropy", "target_weight"),
    *("grad_loss", "grad_lse", "grad_logprob", "grad_entropy"),
)


def _arrays(rows: Arrays, shared: Arrays) -> dict[str, jax.Array | None]:
    return {
        "logits_hbm": rows["logits"],
        "targets_hbm": rows["target"],
        "class_weight_hbm": shared["class_weight"],
    }


def _cut(logits: jax.Array, direction: str) -> Mapping[str, Any]:
    """Return the tiling of a kernel, and the type of its tiles."""
    positions, classes = logits.shape
    tiling = choose_tiling(positions, classes, logits.dtype, direction, extended=True)
    return {**tiling._asdict(), "dtype": TILE_DTYPES[logits.dtype]}
