# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the kernels with the options of training recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.experimental.loss.bounds import FORWARD_UNITS, SMALLEST_NORMAL, UNIT, bfloat16_allowance, float16_allowance
from nkilib.experimental.loss.cross_entropy.host.extended_bounds import (
    CAP_UNITS,
    extended_forward_bounds,
    extended_gradient_bound,
)
from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.experimental.loss.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths

POSITIONS: Final = 9
CLASSES: Final = 43
_TILING: Final[dict[str, Any]] = {"positions_per_batch": 4, "chunk_size": 16}
_FIRST: Final = ("loss", "lse", "target_logit", "position_weight")
# What a flag adds to the results, in their order.
_ASKED: Final = {
    "with_argmax": ("argmax",),
    "with_entropy": ("entropy",),
    "with_distance_sum": ("distance_sum",),
    "with_log_sum": ("maximum", "log_sum"),
}
_ALL_ASKED: Final = dict.fromkeys(_ASKED, True)
# Upstream gradients and what belongs to them, as the oracle takes them.
_FURTHER: Final = ("grad_lse_hbm", "grad_logprob_hbm", "entropy_hbm", "grad_entropy_hbm")
_SHARD_FIRST: Final = 20
_SIZES: Final = (POSITIONS, CLASSES)
# What rounding a gradient to a type adds to its bound.
_ALLOWANCES: Final = {"bfloat16": bfloat16_allowance, "float16": float16_allowance}
_SHARD_SIZES: Final = (POSITIONS, CLASSES - _SHARD_FIRST)
_RECIPE: Final = {each.name for each in fields(ExtendedLoss)} - {"class_weight"}
# How the forward computes, and not what; both forms have cases of their own.
_FORM: Final = {"exact_maximum"}

_IGNORED: Final = {"ignore_index": int(inputs.targets(POSITIONS, CLASSES)[2])}
_WEIGHTS: Final = {"class_weight_hbm": inputs.class_weights(CLASSES)}
_PROBABILITIES: Final = {"targets_hbm": inputs.probabilities(POSITIONS, CLASSES)}
_SMOOTHED: Final = {"label_smoothing": 0.1}
_CAPPED: Final = {"logit_softcap": 5.0}
_SQUARE: Final = {"lse_square_scale": 0.01}

# Options that meet in one launch: each launch on a device is a compilation.
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "no option": {},
    "weights, smoothing, ignored, z-loss": {**_WEIGHTS, **_SMOOTHED, **_IGNORED, **_SQUARE},
    "soft cap": _CAPPED,
    "smoothing, soft cap, temperature": {**_SMOOTHED, **_CAPPED, "temperature": 0.7},
    "probabilities": _PROBABILITIES,
    "probabilities, weights, smoothing, soft cap": {**_PROBABILITIES, **_WEIGHTS, **_SMOOTHED, **_CAPPED},
}
# An option that has no line above gets a launch with a value of its type that is not its default.
_SAMPLES: Final = {"bool": True, "int": 1, "float": 0.1, "float | None": 2.0}
_LISTED: Final = {name for options in OPTIONS.values() for name in options} | _FORM
OPTIONS.update(
    {each.name: {each.name: _SAMPLES[str(each.type)]} for each in fields(LossOptions) if each.name not in _LISTED}
)


def loss_of(given: Mapping[str, Any]) -> ExtendedLoss:
    """The options of a launch as the oracle takes them."""
    return ExtendedLoss(given.get("class_weight_hbm"), **{name: given[name] for name in _RECIPE & given.keys()})


def has_truth(given: Mapping[str, Any]) -> bool:
    """Whether the oracle knows every option of a launch."""
    return {each.name for each in fields(LossOptions)} & given.keys() <= _RECIPE | _FORM


def result_names(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What the forward returns, in order."""
    return _FIRST + tuple(name for flag, names in _ASKED.items() if given.get(flag) for name in names)


def forward_truths(given: Mapping[str, Any]) -> Truths:
    """Every result in float64; of a shard all but the loss, which it does not define."""
    if not has_truth(given):
        return {}
    logits, targets, dtype, options = given["logits_hbm"], given["targets_hbm"], given["dtype"], loss_of(given)
    first = given.get("first_class", 0)
    if "num_classes" in given:  # a target of another shard has no element here, as one that is ignored
        is_here = (targets >= first) & (targets < first + logits.shape[1]) & (targets != options.ignore_index)
        targets = np.where(is_here, targets - first, options.ignore_index)
    with np.errstate(all="ignore"):
        exact = extended_forward_reference(logits, targets, dtype, options)
        bounds = extended_forward_bounds(logits, targets, dtype, options)
        found = {name: Truth(getattr(exact, name), bound) for name, bound in bounds.items()}
        z = options.scores(logits, dtype)
        maximum = z.max(axis=1)
        log_sum = np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1))
        # Of a row without a finite maximum, the two are what the kernel needs to form lse of them.
        is_defined = np.isfinite(maximum)
        of_cap = CAP_UNITS * UNIT * (options.logit_softcap or 0.0) / options.temperature
        found["maximum"] = Truth(maximum, np.full_like(maximum, of_cap + SMALLEST_NORMAL), is_defined)
        of_sum = FORWARD_UNITS * UNIT * np.maximum(1.0, log_sum) + 2.0 * of_cap
        found["log_sum"] = Truth(log_sum, of_sum, is_defined)
        found["distance_sum"] = found["distance_sum"]._replace(is_defined=is_defined)
        if given.get("exact_maximum") is False:  # the two are of the shift, which need not be the maximum
            del found["maximum"], found["log_sum"]
        no_argmax = first + logits.shape[1] if "num_classes" not in given else given["num_classes"]
        argmax = np.where(np.isnan(logits.astype(np.float32)).any(axis=1), no_argmax, exact.argmax + first)
        found["argmax"] = Truth(argmax.astype(np.int32))
    if "num_classes" in given:
        del found["loss"]
    return found


def backward_truths(given: Mapping[str, Any]) -> Truths:
    """The gradient in float64; that of a shard is a part of the whole."""
    if not has_truth(given):
        return {}
    logits, dtype, options = given["logits_hbm"], given["dtype"], loss_of(given)
    received = BackwardInputs(given["lse_hbm"], given["grad_loss_hbm"], *(given.get(name) for name in _FURTHER))
    result = logits.dtype if given.get("inplace") else inputs.ALL_TYPES[str(dtype)][0]
    with np.errstate(all="ignore"):
        exact = extended_backward_reference(logits, given["targets_hbm"], dtype, options, received)
        bound = extended_gradient_bound(logits, given["targets_hbm"], dtype, options, received)
        for name in {result.name, str(dtype)} & set(_ALLOWANCES):
            bound = bound + _ALLOWANCES[name](exact)
    return {"gradient": Truth(exact, bound)}


def shard_backward_truths(given: Mapping[str, Any]) -> Truths:
    """As :func:`backward_truths`, of the columns of a shard, from the launch of the whole."""
    (truth,) = backward_truths(_whole(given)).values()
    if truth.bound is None:
        raise AssertionError("the gradient has a bound")
    return {"gradient": Truth(truth.exact[:, _SHARD_FIRST:], truth.bound[:, _SHARD_FIRST:])}


def _whole(given: Mapping[str, Any]) -> dict[str, Any]:
    """The launch on all classes of which a shard's is a part."""
    type_name = given["logits_hbm"].dtype.name
    return {
        **given,
        "logits_hbm": inputs.logits(POSITIONS, CLASSES, type_name),
        "class_weight_hbm": inputs.class_weights(CLASSES),
    }


def _forward(type_name: str, **options: Any) -> dict[str, Any]:
    return {
        "logits_hbm": inputs.logits(POSITIONS, CLASSES, type_name),
        "targets_hbm": inputs.targets(POSITIONS, CLASSES),
        "dtype": inputs.ALL_TYPES[type_name][1],
        **_TILING,
        **options,
    }


def _shard(given: dict[str, Any]) -> dict[str, Any]:
    """The last classes of a launch on all."""
    cut = {"logits_hbm": np.ascontiguousarray(given["logits_hbm"][:, _SHARD_FIRST:])}
    if "class_weight_hbm" in given:
        cut["class_weight_hbm"] = given["class_weight_hbm"][_SHARD_FIRST:].copy()
    return {**given, **cut, "first_class": _SHARD_FIRST, "num_classes": CLASSES}


def _shard_forward(type_name: str) -> dict[str, Any]:
    return _shard(_forward(type_name, **_ALL_ASKED))


def _ties(type_name: str) -> dict[str, Any]:
    """Rows whose largest logit stands in many columns, a few of the last chunk; and a chunk of fewer than eight."""
    given = _forward(type_name, **_ALL_ASKED, chunk_size=20)
    given["logits_hbm"] = (given["logits_hbm"].astype(np.float32) > 2.0).astype(inputs.ALL_TYPES[type_name][0])
    return given


def _special_forward(type_name: str, **options: Any) -> dict[str, Any]:
    return {
        "logits_hbm": inputs.special_logits(type_name),
        "targets_hbm": inputs.special_targets(),
        "dtype": inputs.ALL_TYPES[type_name][1],
        **inputs.SPECIAL_TILING,
        **options,
    }


def _backward(forward: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A launch of the backward on what a forward was launched with; the log-sum-exp is the exact one, rounded."""
    given = {name: value for name, value in {**forward, **options}.items() if name not in _ASKED}
    with np.errstate(all="ignore"):
        exact = extended_forward_reference(
            given["logits_hbm"], given["targets_hbm"], given["dtype"], loss_of(given)
        ).lse.astype(np.float32)
    return {**given, "lse_hbm": exact, "grad_loss_hbm": inputs.numbers(5, len(exact))}


def _all_gradients(type_name: str) -> dict[str, Any]:
    """Gradients of every result that has one, p from maximum and log-sum, over the logits."""
    given = _backward(_forward(type_name, **_WEIGHTS, **_SMOOTHED, **_SQUARE))
    z = given["logits_hbm"].astype(np.float64)
    maximum = z.max(axis=1)
    return {
        **given,
        "grad_lse_hbm": inputs.numbers(6, POSITIONS),
        "grad_logprob_hbm": inputs.numbers(7, POSITIONS),
        "entropy_hbm": np.abs(inputs.numbers(8, POSITIONS)),
        "grad_entropy_hbm": inputs.numbers(9, POSITIONS),
        "maximum_hbm": maximum.astype(np.float32),
        "log_sum_hbm": np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1)).astype(np.float32),
        "inplace": True,
    }


def _shard_backward(type_name: str) -> dict[str, Any]:
    """A shard's part of a gradient: what it cannot know of the others is given."""
    given = _backward(_forward(type_name, **_WEIGHTS, **_SMOOTHED))
    weights = given["class_weight_hbm"]
    known = {"target_weight_hbm": weights[given["targets_hbm"]], "weight_sum": float(weights.sum())}
    return {**_shard(given), **known}


def _forward_case(name: str, cores: int, make: Any, sizes: tuple[int, int] = _SIZES, is_quick: bool = False) -> Case:
    full_name, results = f"extended_cross_entropy_forward: {name}", result_names(make())
    return Case(full_name, is_quick, sizes, extended_cross_entropy_forward, make, results, forward_truths, cores)


def _backward_case(
    name: str, make: Any, truths: Any = backward_truths, sizes: tuple[int, int] = _SIZES, written: str | None = None
) -> Case:
    full_name, kernel = f"extended_cross_entropy_backward: {name}", extended_cross_entropy_backward
    return Case(full_name, False, sizes, kernel, make, ("gradient",), truths, 2, written)


def cases() -> Iterator[Case]:
    """All of them."""
    for name, options in OPTIONS.items():
        yield _forward_case(f"{name}, float32", 2, partial(_forward, "float32", **options, **_ALL_ASKED))
        yield _backward_case(f"{name}, float32", partial(_of_forward, "float32", options))
    for type_name in inputs.ALL_TYPES:
        shard, special = f"a shard, {type_name}", f"special rows, {type_name}"
        yield _forward_case(shard, 2, partial(_shard_forward, type_name), _SHARD_SIZES)
        yield _backward_case(shard, partial(_shard_backward, type_name), shard_backward_truths, _SHARD_SIZES)
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
    capped = "special rows, soft cap, float32"
    yield _forward_case(capped, 2, partial(_special_forward, "float32", **_CAPPED), inputs.SPECIAL_SIZES)
    yield _backward_case(capped, partial(_special_backward, "float32", **_CAPPED), sizes=inputs.SPECIAL_SIZES)
    weighted, options = "weights, smoothing, bfloat16", {**_WEIGHTS, **_SMOOTHED}
    yield _forward_case(weighted, 2, partial(_forward, "bfloat16", **options))
    yield _backward_case(weighted, partial(_of_forward, "bfloat16", options))


def _of_forward(type_name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return _backward(_forward(type_name, **options))


def _special_backward(type_name: str, **options: Any) -> dict[str, Any]:
    return _backward(_special_forward(type_name, **options))
