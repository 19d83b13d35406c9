# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of the kernels that compute losses and scores from hidden states. Rows are positions.

``rows`` have an entry for each position; ``shared`` holds the arrays that all positions share: the output layer and the
class weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp

from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.cross_entropy.options import LossOptions, Wanted
from nkilib.jax.dispatch.batching import Arrays, required
from nkilib.jax.dispatch.host_call import Result
from nkilib.jax.dispatch.launch import Kernel, launch
from nkilib.jax.functions.cross_entropy.kernels import TILE_DTYPES
from nkilib.jax.functions.cross_entropy.targets import IGNORED
from nkilib.simulator.hardware.options import Options

_FLOAT32, _INT32 = jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)
_FORWARD: Final = Kernel("linear_cross_entropy_forward", linear_cross_entropy_forward)
_BACKWARD: Final = Kernel("linear_cross_entropy_backward", linear_cross_entropy_backward)
# The kernels for several target ids per position.
_FORWARD_OF_IDS: Final = Kernel("linear_token_scores_forward", linear_token_scores_forward)
_BACKWARD_OF_IDS: Final = Kernel("linear_token_scores_backward", linear_token_scores_backward)


@dataclass(frozen=True)
class LinearRecipe:
    """The options that are compiled into the kernels.

    Attributes:
        caller: the name that errors begin with.
        is_loss: whether the kernel computes a loss; else log-probabilities, without options of the loss.
        options: the options of the loss.
        logit_scale: the factor of product and bias, before cap and temperature.
        compute_dtype: the name of the type that operands of another type are rounded to; None: all have the same type.
        weight_layout: ``"vd"`` or ``"dv"``.
        wanted: the wanted results of the forward; maximum and log-sum are among them.
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
        """Return the constant arguments of forward and backward, with ``of_ids`` those of the kernels that take K ids
        per position and no loss options. Their ``ignore_index`` is the one int32 that replaces every ignored target.
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
    """The arguments whose gradients are needed."""

    input: bool
    weight: bool
    bias: bool


def forward(recipe: LinearRecipe, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the forward kernel and return its results.

    Args:
        recipe: the compiled options.
        rows: ``input`` [N, D]; ``target`` int32, each a class or ``IGNORED``, [N], or [N, K] for K ids per position.
        shared: ``linear_weight`` in its layout; ``linear_bias`` and ``class_weight``, [V] float32 or None.

    Returns:
        [N] float32, except ``argmax``, which is int32: loss, or with K ids logprob [N, K]; lse, maximum and log_sum;
        and if wanted target_logit, position_weight, argmax, entropy, log_sum_squares and mean_logit.
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


def backward(recipe: LinearRecipe, needed: Needed, rows: Arrays, shared: Arrays) -> dict[str, jax.Array]:
    """Launch the backward kernel and return the needed gradients.

    ``input`` and ``linear_weight`` have the shape and type of these arrays, ``linear_bias`` is [V] float32.

    Args:
        recipe: the compiled options of the forward.
        needed: the needed gradients, at least one.
        rows: see :func:`forward`, and [N] float32 each: ``maximum`` and ``log_sum`` of the forward; ``grad_loss``,
            ``grad_lse``, ``grad_logprob`` ([N, K] with K ids) and ``grad_entropy``, None for no gradient, at least one
            is required; ``entropy`` of the forward, where it has a gradient. With K ids there is no ``grad_loss``.
        shared: see :func:`forward`.
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
    further = {f"{name}_hbm": rows[name] for name in (*_OF_BACKWARD, *(() if of_ids else ("grad_loss",)))}
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


_OF_BACKWARD: Final = ("maximum", "log_sum", "entropy", "grad_lse", "grad_logprob", "grad_entropy")


def _arrays(rows: Arrays, shared: Arrays) -> dict[str, jax.Array | None]:
    return {
        "input_hbm": rows["input"],
        "weight_hbm": shared["linear_weight"],
        "targets_hbm": rows["target"],
        "bias_hbm": shared["linear_bias"],
        "class_weight_hbm": shared["class_weight"],
    }
