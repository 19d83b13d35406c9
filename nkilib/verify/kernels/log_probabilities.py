# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the kernels whose inputs are log-probabilities: negative log-likelihood and Kullback-Leibler divergence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.core.host.error_bounds import GRANTED
from nkilib.experimental.loss import kl_div_backward, kl_div_forward, nll_loss_backward, nll_loss_forward
from nkilib.experimental.loss.elementwise.kl_div import KlDivReference
from nkilib.experimental.loss.nll.host import (
    nll_loss_bound,
    nll_loss_gradient_bound,
    nll_loss_gradient_reference,
    nll_loss_reference,
)
from nkilib.experimental.loss.skeletons.elementwise import host as reference
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.step import Array

# A block of 128 rows and a short one.
_SIZES: Final = (140, 37)
# Two full tiles, and the rest of the stream in two more.
_FLAT_SIZES: Final = (140, 1001)
_COLUMNS: Final = 512
_IGNORED: Final = 5


def _log_probabilities(rows: int, columns: int, type_name: str) -> Array:
    logits = inputs.logits(rows, columns, "float32").astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    values: Array = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(inputs.TYPES[type_name][0])
    return values


def _kl_div(type_name: str, **options: Any) -> dict[str, Any]:
    rows, columns = _FLAT_SIZES
    target = inputs.probabilities(rows, columns)
    if options.get("log_target"):
        target = _log_probabilities(rows, columns, "float32")[::-1]
    else:
        target[:, ::7] = 0.0
    arguments = {
        "input_hbm": _log_probabilities(rows, columns, type_name),
        "target_hbm": np.ascontiguousarray(target.astype(np.float16)),
        "columns": _COLUMNS,
        "buffers": 2,
    }
    return {**arguments, **options}


def _special(type_name: str) -> dict[str, Any]:
    """Return arguments with all pairs of special log-probabilities and special probabilities, such as infinities, NaN
    and 0.
    """
    x = np.array([0.0, -1.0, -1e-3, -88.0, -1e4, -inputs.INF, inputs.INF, inputs.NAN, inputs.SUBNORMAL, 3e38])
    t = np.array([0.0, 1.0, 0.5, 0.999, 1e-3, 1e-30, inputs.NAN])
    pairs = np.meshgrid(x, t)
    with np.errstate(over="ignore"):
        log_probabilities, target = (
            np.ascontiguousarray(values).astype(inputs.TYPES[type_name][0]) for values in pairs
        )
    return {"input_hbm": log_probabilities, "target_hbm": target, "reduction": "none"}


def _of_kl_div(arguments: Mapping[str, Any]) -> tuple[KlDivReference, dict[str, Array]]:
    return KlDivReference(bool(arguments.get("log_target", False))), {
        "input": arguments["input_hbm"],
        "target": arguments["target_hbm"],
    }


def _kl_div_references(arguments: Mapping[str, Any]) -> References:
    reduction = arguments.get("reduction", "mean")
    if reduction == "none":
        dtype = inputs.TYPES[str(arguments["dtype"])][0] if "dtype" in arguments else arguments["input_hbm"].dtype
        return {"loss": Reference(*reference.losses(*_of_kl_div(arguments), dtype, GRANTED))}
    return {"loss": Reference(*reference.reduced(*_of_kl_div(arguments), reduction, arguments["columns"], GRANTED))}


def _kl_div_backward(type_name: str, **options: Any) -> dict[str, Any]:
    arguments = _kl_div(type_name, **options)
    shape = arguments["input_hbm"].shape if options.get("reduction") == "none" else (1,)
    return {**arguments, "grad_loss_hbm": inputs.numbers(7, *shape) + np.float32(3)}


def _kl_div_backward_references(arguments: Mapping[str, Any]) -> References:
    references = reference.gradients(
        *_of_kl_div(arguments), arguments["grad_loss_hbm"], arguments.get("reduction", "mean"), GRANTED
    )
    return {f"grad_{name}": Reference(*exact_and_bound) for name, exact_and_bound in references.items()}


def _nll_loss(type_name: str, **options: Any) -> dict[str, Any]:
    rows, classes = _SIZES
    targets = inputs.targets(rows, classes)
    targets[::5] = _IGNORED
    return {"input_hbm": _log_probabilities(rows, classes, type_name), "targets_hbm": targets, **options}


def _nll_losses(arguments: Mapping[str, Any]) -> Any:
    ignore_index = arguments.get("ignore_index", -100)
    return nll_loss_reference(
        arguments["input_hbm"], arguments["targets_hbm"], arguments.get("class_weight_hbm"), ignore_index
    )


def _nll_loss_references(arguments: Mapping[str, Any]) -> References:
    losses, reduction = _nll_losses(arguments), arguments.get("reduction", "mean")
    shape, dtype = arguments["input_hbm"].shape, arguments["input_hbm"].dtype
    exact, bound = losses.reduced(reduction), nll_loss_bound(losses, shape, reduction, dtype, arguments["streamed"])
    total = losses.weights.sum()
    return {
        "loss": Reference(exact.reshape(-1), bound.reshape(-1)),
        "total_weight": Reference(np.array([total]), np.array([2.0**-18 * total])),
    }


def _nll_loss_backward(type_name: str, **options: Any) -> dict[str, Any]:
    arguments = _nll_loss(type_name, **options)
    if options.get("reduction") == "none":
        return {**arguments, "grad_loss_hbm": inputs.numbers(8, len(arguments["targets_hbm"]))}
    total = _nll_losses(arguments).weights.sum()
    return {
        **arguments,
        "grad_loss_hbm": np.array([1.25], np.float32),
        "total_weight_hbm": np.array([total], np.float32),
    }


def _nll_loss_backward_references(arguments: Mapping[str, Any]) -> References:
    weights, upstream = _nll_losses(arguments).weights, arguments["grad_loss_hbm"].astype(np.float64)
    if arguments.get("reduction", "mean") == "mean":
        upstream = upstream / arguments["total_weight_hbm"].astype(np.float64)
    exact = nll_loss_gradient_reference(arguments["input_hbm"], arguments["targets_hbm"], weights, upstream)
    return {"gradient": Reference(exact, nll_loss_gradient_bound(exact, arguments["input_hbm"].dtype))}


def _nll_cases(type_name: str, streamed: bool) -> Iterator[Case]:
    weighted = {"class_weight_hbm": inputs.class_weights(_SIZES[1]), "ignore_index": _IGNORED}
    way = "streamed" if streamed else "gathered"
    forward, backward, results = "nll_loss_forward", "nll_loss_backward", ("loss", "total_weight")
    for cores, options in ((1, {"reduction": "none"}), (2, weighted)):
        yield Case(
            f"{forward}: {'weighted mean' if options is weighted else 'none'}, {way}, {type_name}",
            False,
            _SIZES,
            nll_loss_forward,
            partial(_nll_loss, type_name, streamed=streamed, **options),
            results,
            _nll_loss_references,
            cores,
        )
    for cores, written, options in (
        (1, None, {"reduction": "none"}),
        (2, "input_hbm", {**weighted, "inplace": True}),
    ):
        yield Case(
            f"{backward}: {'none' if written is None else 'weighted mean, in place'}, {way}, {type_name}",
            False,
            _SIZES,
            nll_loss_backward,
            partial(_nll_loss_backward, type_name, streamed=streamed, **options),
            ("gradient",),
            _nll_loss_backward_references,
            cores,
            written,
        )


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    for type_name in inputs.TYPES:
        for streamed in (False, True):
            yield from _nll_cases(type_name, streamed)
        yield from _kl_div_cases(type_name)


def _kl_div_cases(type_name: str) -> Iterator[Case]:
    forward = partial(Case, kernel=kl_div_forward, names=("loss",), references=_kl_div_references, is_quick=False)
    cases: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("mean", 1, {}),
        ("sum of log targets", 2, {"log_target": True, "reduction": "sum"}),
        ("none, float32 results", 2, {"reduction": "none", "dtype": nl.float32}),
    )
    for name, cores, options in cases:
        make = partial(_kl_div, type_name, **options)
        yield forward(f"kl_div_forward: {name}, {type_name}", sizes=_FLAT_SIZES, arguments=make, num_cores=cores)
    special = partial(_special, type_name)
    yield forward(f"kl_div_forward: special, {type_name}", sizes=(7, 10), arguments=special, num_cores=2)
    backward = partial(
        Case, kernel=kl_div_backward, references=_kl_div_backward_references, is_quick=False, sizes=_FLAT_SIZES
    )
    both_gradients = {"grad_target_wanted": True, "inplace": True}
    yield backward(
        f"kl_div_backward: both, mean, in place, {type_name}",
        arguments=partial(_kl_div_backward, type_name, **both_gradients),
        names=("grad_input", "grad_target"),
        num_cores=2,
        written="input_hbm",
    )
    target_alone = {"grad_target_wanted": True, "grad_input_wanted": False, "log_target": True, "reduction": "none"}
    yield backward(
        f"kl_div_backward: log target alone, none, {type_name}",
        arguments=partial(_kl_div_backward, type_name, **target_alone),
        names=("grad_target",),
        num_cores=1,
    )
