# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of cross-entropy with the options of training recipes, on all classes and on a shard of them.

In the last case, a kernel of this module (:func:`inlined_extended_cross_entropy`) calls forward and backward, as
kernels of users do. The functions ``..._references`` return the float64 references of a launch, with bounds on the
error. p is the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import extended_cross_entropy_backward, extended_cross_entropy_forward, extended_inline
from nkilib.experimental.loss.bounds import FORWARD_UNITS, SMALLEST_NORMAL, UNIT, bfloat16_allowance, float16_allowance
from nkilib.experimental.loss.cross_entropy.bounds import CAP_UNITS, extended_forward_bounds, extended_gradient_bound
from nkilib.experimental.loss.cross_entropy.launch import LossOptions
from nkilib.experimental.loss.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.nki import nki, nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.kernels.cross_entropy import LAYOUTS, SMALL, logits_and_targets, widened

POSITIONS: Final = 9
CLASSES: Final = 43
_TILING: Final[dict[str, Any]] = {"positions_per_batch": 4, "chunk_size": 16}
_FIRST: Final = ("loss", "lse", "target_logit", "position_weight")
# The results that a flag adds, in their order.
_ASKED: Final = {
    "with_argmax": ("argmax",),
    "with_entropy": ("entropy",),
    "with_distance_sum": ("distance_sum",),
    "with_log_sum": ("maximum", "log_sum"),
}
_ALL_ASKED: Final = dict.fromkeys(_ASKED, True)
# Upstream gradients and their companions, as the reference takes them.
_FURTHER: Final = ("grad_lse_hbm", "grad_logprob_hbm", "entropy_hbm", "grad_entropy_hbm")
_SHARD_FIRST: Final = 20
_SIZES: Final = (POSITIONS, CLASSES)
# The share that rounding a gradient to a type adds to its bound.
_ALLOWANCES: Final = {"bfloat16": bfloat16_allowance, "float16": float16_allowance}
_SHARD_SIZES: Final = (POSITIONS, CLASSES - _SHARD_FIRST)
_RECIPE: Final = {each.name for each in fields(ExtendedLoss)} - {"class_weight"}
# Options for how the forward computes, not for its results; both forms have cases of their own.
_FORM: Final = {"exact_maximum"}

_IGNORED: Final = {"ignore_index": int(inputs.targets(POSITIONS, CLASSES)[2])}
_WEIGHTS: Final = {"class_weight_hbm": inputs.class_weights(CLASSES)}
_PROBABILITIES: Final = {"targets_hbm": inputs.probabilities(POSITIONS, CLASSES)}
_SMOOTHED: Final = {"label_smoothing": 0.1}
_CAPPED: Final = {"logit_softcap": 5.0}
_SQUARE: Final = {"lse_square_scale": 0.01}

# Options that share a launch, because each launch on a device is a compilation.
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "no option": {},
    "weights, smoothing, ignored, z-loss": {**_WEIGHTS, **_SMOOTHED, **_IGNORED, **_SQUARE},
    "soft cap": _CAPPED,
    "smoothing, soft cap, temperature": {**_SMOOTHED, **_CAPPED, "temperature": 0.7},
    "temperatures of positions": {**_CAPPED, "temperature_hbm": np.geomspace(0.25, 8.0, POSITIONS).astype(np.float32)},
    "probabilities": _PROBABILITIES,
    "probabilities, weights, smoothing, soft cap": {**_PROBABILITIES, **_WEIGHTS, **_SMOOTHED, **_CAPPED},
}
# An option that has no line above gets a launch with a value of its type that is not its default.
_SAMPLES: Final = {"bool": True, "int": 1, "float": 0.1, "float | None": 2.0}
_LISTED: Final = {name for options in OPTIONS.values() for name in options} | _FORM
OPTIONS.update(
    {each.name: {each.name: _SAMPLES[str(each.type)]} for each in fields(LossOptions) if each.name not in _LISTED}
)


def loss_of(arguments: Mapping[str, Any]) -> ExtendedLoss:
    """Return the options of a launch in the form that the float64 reference takes."""
    recipe = {name: arguments[name] for name in _RECIPE & arguments.keys()}
    if "temperature_hbm" in arguments:
        recipe["temperature"] = arguments["temperature_hbm"]
    return ExtendedLoss(arguments.get("class_weight_hbm"), **recipe)


def has_reference(arguments: Mapping[str, Any]) -> bool:
    """Return whether the float64 reference implements every option of a launch."""
    return {field.name for field in fields(LossOptions)} & arguments.keys() <= _RECIPE | _FORM


def result_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the forward's results for these arguments, in order."""
    return _FIRST + tuple(name for flag, names in _ASKED.items() if arguments.get(flag) for name in names)


def forward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 reference of every result of a forward; an empty mapping if the reference lacks one of the
    options.

    A launch on a shard of the classes has no reference for the loss, because a shard does not define the loss.
    """
    if not has_reference(arguments):
        return {}
    logits, targets, dtype, options = (
        arguments["logits_hbm"],
        arguments["targets_hbm"],
        arguments["dtype"],
        loss_of(arguments),
    )
    first = arguments.get("first_class", 0)
    if "num_classes" in arguments:  # a target of another shard has no element here, as one that is ignored
        is_here = (targets >= first) & (targets < first + logits.shape[1]) & (targets != options.ignore_index)
        targets = np.where(is_here, targets - first, options.ignore_index)
    with np.errstate(all="ignore"):
        exact = extended_forward_reference(logits, targets, dtype, options)
        bounds = extended_forward_bounds(logits, targets, dtype, options)
        references = {name: Reference(getattr(exact, name), bound) for name, bound in bounds.items()}
        z = options.scores(logits, dtype)
        maximum = z.max(axis=1)
        log_sum = np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1))
        # In a row without a finite maximum, the two are the values from which the kernel forms lse.
        is_defined = np.isfinite(maximum)
        of_cap = CAP_UNITS * UNIT * (options.logit_softcap or 0.0) / options.divisor
        references["maximum"] = Reference(maximum, np.full_like(maximum, of_cap + SMALLEST_NORMAL), is_defined)
        of_sum = FORWARD_UNITS * UNIT * np.maximum(1.0, log_sum) + 2.0 * of_cap
        references["log_sum"] = Reference(log_sum, of_sum, is_defined)
        references["distance_sum"] = references["distance_sum"]._replace(is_defined=is_defined)
        if arguments.get("exact_maximum") is False:  # the two belong to the shift, which need not be the maximum
            del references["maximum"], references["log_sum"]
        no_argmax = first + logits.shape[1] if "num_classes" not in arguments else arguments["num_classes"]
        argmax = np.where(np.isnan(logits.astype(np.float32)).any(axis=1), no_argmax, exact.argmax + first)
        references["argmax"] = Reference(argmax.astype(np.int32))
    if "num_classes" in arguments:
        del references["loss"]
    return references


def backward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 reference of the gradient, for a launch on all classes; an empty mapping if the reference
    lacks one of the options.
    """
    if not has_reference(arguments):
        return {}
    logits, dtype, options = arguments["logits_hbm"], arguments["dtype"], loss_of(arguments)
    received = BackwardInputs(
        arguments["lse_hbm"], arguments["grad_loss_hbm"], *(arguments.get(name) for name in _FURTHER)
    )
    result = logits.dtype if arguments.get("inplace") else inputs.ALL_TYPES[str(dtype)][0]
    with np.errstate(all="ignore"):
        exact = extended_backward_reference(logits, arguments["targets_hbm"], dtype, options, received)
        bound = extended_gradient_bound(logits, arguments["targets_hbm"], dtype, options, received)
        for name in {result.name, str(dtype)} & set(_ALLOWANCES):
            bound = bound + _ALLOWANCES[name](exact)
    return {"gradient": Reference(exact, bound)}


def _whole(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the launch on all classes from which the arguments of a shard were cut."""
    type_name = arguments["logits_hbm"].dtype.name
    return {
        **arguments,
        "logits_hbm": inputs.logits(POSITIONS, CLASSES, type_name),
        "class_weight_hbm": inputs.class_weights(CLASSES),
    }


def shard_backward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 reference of a shard's gradient: the shard's columns of the gradient for all classes."""
    (expected,) = backward_references(_whole(arguments)).values()
    if expected.bound is None:
        raise AssertionError("the gradient has a bound")
    return {"gradient": Reference(expected.exact[:, _SHARD_FIRST:], expected.bound[:, _SHARD_FIRST:])}


def _forward(type_name: str, **options: Any) -> dict[str, Any]:
    return {
        "logits_hbm": inputs.logits(POSITIONS, CLASSES, type_name),
        "targets_hbm": inputs.targets(POSITIONS, CLASSES),
        "dtype": inputs.ALL_TYPES[type_name][1],
        **_TILING,
        **options,
    }


def _shard(arguments: dict[str, Any]) -> dict[str, Any]:
    cut = {"logits_hbm": np.ascontiguousarray(arguments["logits_hbm"][:, _SHARD_FIRST:])}
    if "class_weight_hbm" in arguments:
        cut["class_weight_hbm"] = arguments["class_weight_hbm"][_SHARD_FIRST:].copy()
    return {**arguments, **cut, "first_class": _SHARD_FIRST, "num_classes": CLASSES}


def _shard_forward(type_name: str) -> dict[str, Any]:
    return _shard(_forward(type_name, **_ALL_ASKED))


def _ties(type_name: str) -> dict[str, Any]:
    """Return arguments in which the largest logit of a row occurs in many columns, a few of them in the last chunk.

    The last chunk has fewer than eight columns.
    """
    arguments = _forward(type_name, **_ALL_ASKED, chunk_size=20)
    arguments["logits_hbm"] = (arguments["logits_hbm"].astype(np.float32) > 2.0).astype(inputs.ALL_TYPES[type_name][0])
    return arguments


def _special_forward(type_name: str, **options: Any) -> dict[str, Any]:
    return {
        "logits_hbm": inputs.special_logits(type_name),
        "targets_hbm": inputs.special_targets(),
        "dtype": inputs.ALL_TYPES[type_name][1],
        **inputs.SPECIAL_TILING,
        **options,
    }


def _backward(forward: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the arguments of a backward from the arguments of a forward, with the exact log-sum-exp rounded to
    float32.

    Args:
        forward: the arguments of the forward.
        options: further arguments of the backward.
    """
    arguments = {name: value for name, value in {**forward, **options}.items() if name not in _ASKED}
    with np.errstate(all="ignore"):
        exact = extended_forward_reference(
            arguments["logits_hbm"], arguments["targets_hbm"], arguments["dtype"], loss_of(arguments)
        ).lse.astype(np.float32)
    return {**arguments, "lse_hbm": exact, "grad_loss_hbm": inputs.numbers(5, len(exact))}


def _all_gradients(type_name: str) -> dict[str, Any]:
    """Return arguments of a backward that writes over the logits, with upstream gradients of all differentiable
    results.

    The kernel computes p from ``maximum_hbm`` and ``log_sum_hbm``.
    """
    arguments = _backward(_forward(type_name, **_WEIGHTS, **_SMOOTHED, **_SQUARE))
    z = arguments["logits_hbm"].astype(np.float64)
    maximum = z.max(axis=1)
    return {
        **arguments,
        "grad_lse_hbm": inputs.numbers(6, POSITIONS),
        "grad_logprob_hbm": inputs.numbers(7, POSITIONS),
        "entropy_hbm": np.abs(inputs.numbers(8, POSITIONS)),
        "grad_entropy_hbm": inputs.numbers(9, POSITIONS),
        "maximum_hbm": maximum.astype(np.float32),
        "log_sum_hbm": np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1)).astype(np.float32),
        "inplace": True,
    }


def _shard_backward(type_name: str) -> dict[str, Any]:
    """Return the arguments of a backward on one shard of the classes.

    The shard cannot know the weights of the targets' classes and the sum of all weights, so they are passed too.
    """
    arguments = _backward(_forward(type_name, **_WEIGHTS, **_SMOOTHED))
    weights = arguments["class_weight_hbm"]
    known = {"target_weight_hbm": weights[arguments["targets_hbm"]], "weight_sum": float(weights.sum())}
    return {**_shard(arguments), **known}


def _forward_case(name: str, cores: int, make: Any, sizes: tuple[int, int] = _SIZES, is_quick: bool = False) -> Case:
    full_name, kernel = f"extended_cross_entropy_forward: {name}", extended_cross_entropy_forward
    return Case(full_name, is_quick, sizes, kernel, make, result_names, forward_references, cores)


def _backward_case(
    name: str,
    make: Any,
    references: Any = backward_references,
    sizes: tuple[int, int] = _SIZES,
    written: str | None = None,
) -> Case:
    full_name, kernel = f"extended_cross_entropy_backward: {name}", extended_cross_entropy_backward
    return Case(full_name, False, sizes, kernel, make, ("gradient",), references, 2, written)


_INLINED_OPTIONS: Final[dict[str, Any]] = {"label_smoothing": 0.1, "logit_softcap": 3.0}


@nki.jit
def inlined_extended_cross_entropy(
    logits_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor, grad_loss_hbm: nl.NkiTensor
) -> tuple[nl.NkiTensor, ...]:
    """Compute loss, log-sum-exp and gradient in one kernel, all float32, with label smoothing and a soft cap."""
    tiling = {**SMALL, "dtype": nl.float32, **_INLINED_OPTIONS}
    forward = extended_inline.extended_cross_entropy_forward(logits_hbm, targets_hbm, **tiling)
    gradient_hbm = extended_inline.extended_cross_entropy_backward(
        logits_hbm, targets_hbm, forward[1], grad_loss_hbm, **tiling
    )
    return forward[0], forward[1], gradient_hbm


def _inlined_arguments() -> dict[str, Any]:
    arrays = logits_and_targets()
    return {**arrays, "grad_loss_hbm": inputs.numbers(5, *arrays["targets_hbm"].shape)}


def _inlined_references(arguments: Mapping[str, Any]) -> References:
    launch = {**arguments, "dtype": nl.float32, **_INLINED_OPTIONS}
    forward = forward_references(launch)
    backward = {**launch, "lse_hbm": forward["lse"].exact.astype(np.float32)}
    return {**{name: forward[name] for name in ("loss", "lse")}, **widened(backward_references(backward))}


def _of_forward(type_name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return _backward(_forward(type_name, **options))


def _special_backward(type_name: str, **options: Any) -> dict[str, Any]:
    return _backward(_special_forward(type_name, **options))


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    for name, options in OPTIONS.items():
        yield _forward_case(f"{name}, float32", 2, partial(_forward, "float32", **options, **_ALL_ASKED))
        yield _backward_case(f"{name}, float32", partial(_of_forward, "float32", options))
    for type_name in inputs.ALL_TYPES:
        shard, special = f"a shard, {type_name}", f"special rows, {type_name}"
        yield _forward_case(shard, 2, partial(_shard_forward, type_name), _SHARD_SIZES)
        yield _backward_case(shard, partial(_shard_backward, type_name), shard_backward_references, _SHARD_SIZES)
        yield _forward_case(
            f"equal largest logits, {type_name}", 1, partial(_ties, type_name), is_quick=type_name == "float32"
        )
        yield _forward_case(special, 2, partial(_special_forward, type_name, **_ALL_ASKED), inputs.SPECIAL_SIZES)
        yield _backward_case(special, partial(_special_backward, type_name), sizes=inputs.SPECIAL_SIZES)
        yield _backward_case(
            f"every gradient, in place, {type_name}", partial(_all_gradients, type_name), written="logits_hbm"
        )
    shifted = {**_WEIGHTS, **_IGNORED, **_SQUARE, "with_log_sum": True, "exact_maximum": False}
    for number, type_name in enumerate(inputs.ALL_TYPES):
        yield _forward_case(
            f"weights, ignored, z-loss, under a shift, {type_name}",
            1 + number % 2,
            partial(_forward, type_name, **shifted),
        )
    laid_out = {**_WEIGHTS, **_IGNORED, **_SQUARE, "positions_per_batch": 128}
    for name, layout in LAYOUTS.items():
        more = {**laid_out, **layout}
        yield _forward_case(name, 2, partial(_forward, "float32", **more, with_log_sum=True, with_entropy=True))
        yield _backward_case(name, partial(_of_forward, "float32", more))
        for option, value in (("smoothing", _SMOOTHED), ("soft cap", _CAPPED)):
            rows = partial(_special_forward, "float32", **value, **layout)
            yield _forward_case(f"special rows, {name}, {option}", 2, rows, inputs.SPECIAL_SIZES)
            yield _backward_case(f"{name}, {option}", partial(_of_forward, "bfloat16", {**value, **layout}))
    capped = "special rows, soft cap, float32"
    yield _forward_case(capped, 2, partial(_special_forward, "float32", **_CAPPED), inputs.SPECIAL_SIZES)
    yield _backward_case(capped, partial(_special_backward, "float32", **_CAPPED), sizes=inputs.SPECIAL_SIZES)
    weighted, options = "weights, smoothing, bfloat16", {**_WEIGHTS, **_SMOOTHED}
    yield _forward_case(weighted, 2, partial(_forward, "bfloat16", **options))
    yield _backward_case(weighted, partial(_of_forward, "bfloat16", options))
    results, sizes = ("loss", "lse", "gradient"), (5, 37)
    kernel = inlined_extended_cross_entropy
    yield Case("extended_inline", False, sizes, kernel, _inlined_arguments, results, _inlined_references, 2)
