# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of token scores: log-probabilities of several target ids per position, from hidden states X and output weights.

dX is the gradient of X, p is the softmax of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import linear_token_scores_backward, linear_token_scores_forward
from nkilib.experimental.loss.linear.reference import EVERY_CLASS, ROUNDOFF
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.kernels.linear_cross_entropy import (
    CLASSES,
    FEATURES,
    OF_POSITIONS,
    POSITIONS,
    gradient_names,
    launch_of,
    problem_of,
)

_TYPES: Final = ("float32", "bfloat16", "float16")
_IDS: Final = 9
_SHARD: Final = slice(150, CLASSES)
# The results that a flag adds, in their order.
_ASKED: Final = {
    "with_target": ("target_logit",),
    "with_argmax": ("argmax",),
    "with_entropy": ("entropy",),
    "with_log_sum": ("maximum", "log_sum"),
    "with_log_sum_squares": ("log_sum_squares",),
    "with_mean_logit": ("mean_logit",),
}
_ALL_ASKED: Final = dict.fromkeys(_ASKED, True)
_SCALED: Final[dict[str, Any]] = {"temperature": 0.7, "logit_scale": 0.5, "logit_softcap": 5.0}
_TILING: Final = {"position_block": 128, "class_block": 128}
# Class 5 is ignored.
_OTHERS: Final[dict[str, Any]] = {"ignore_index": 5, "with_log_sum": True}
_ONE: Final = {"grad_weight_wanted": False}
_GRADIENTS: Final = {"input": "grad_input", "weight": "grad_weight", "bias": "grad_bias"}


def with_ids(arguments: dict[str, Any], ids: int = _IDS) -> dict[str, Any]:
    """Return the arguments with ``ids`` target ids per position in place of one target.

    If there is more than one, the first and the last id are equal, and the second is ignored at every third position.
    """
    ids_of_position = np.stack([np.roll(arguments["targets_hbm"], 7 * shift) for shift in range(ids)], axis=1)
    if ids > 1:
        ids_of_position[:, -1] = ids_of_position[:, 0]
        ids_of_position[::3, 1] = arguments.get("ignore_index", -100)
    return {**arguments, "targets_hbm": ids_of_position}


def forward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 reference of every result of a forward, with bounds. For a shard of the classes, the results
    that a shard does not define are left out.
    """
    problem, first = problem_of(arguments), arguments.get("first_class", 0)
    if "num_classes" in arguments:
        is_here = (problem.targets >= first) & (problem.targets < first + problem.vocab_size)
        problem = replace(problem, targets=np.where(is_here, problem.targets - first, problem.options.ignore_index))
    with np.errstate(all="ignore"):
        exact, bounds = scores_forward_reference(problem), scores_forward_bounds(problem)
    references = {name: Reference(values, bounds.get(name)) for name, values in exact.items()}
    with np.errstate(all="ignore"):
        z = problem.recipe.scores(problem.logits_of(slice(0, POSITIONS), problem.classes_first), None)
    references["maximum"] = Reference(z.max(axis=1), bounds["maximum"])
    references["log_sum"] = Reference(exact["lse"] - z.max(axis=1), bounds["log_sum"])
    references["argmax"] = Reference((exact["argmax"] + first).astype(np.int32))
    if "num_classes" in arguments:
        del references["logprob"]
    return references


def backward_references(arguments: Mapping[str, Any], classes: slice = EVERY_CLASS) -> References:
    """Return the float64 reference of each gradient, with bounds.

    Args:
        arguments: the arguments of the launch, with the weight of all classes.
        classes: the classes of the shard whose gradients are returned.
    """
    problem = problem_of(arguments)
    names = ("grad_logprob_hbm", "grad_lse_hbm", "entropy_hbm", "grad_entropy_hbm")
    upstream = ScoreInputs(arguments["lse_hbm"], *(arguments.get(name) for name in names))
    with np.errstate(all="ignore"):
        gradients, of_gradients = scores_gradients_and_bounds(problem, upstream, classes)
        exact, bounds = gradients._asdict(), of_gradients._asdict()
    if "grad_weight_sum_hbm" in arguments:
        exact["weight"] = exact["weight"] + arguments["grad_weight_sum_hbm"]
        bounds["weight"] = bounds["weight"] + ROUNDOFF * np.abs(exact["weight"])
    return {_GRADIENTS[name]: Reference(exact[name], bounds[name]) for name in _GRADIENTS}


def _shard_references(type_name: str, arguments: Mapping[str, Any]) -> References:
    whole = launch_of(type_name, bias_hbm=True)
    return backward_references({**arguments, "weight_hbm": whole["weight_hbm"], "bias_hbm": whole["bias_hbm"]}, _SHARD)


def _launch(type_name: str, ids: int = _IDS, **options: Any) -> dict[str, Any]:
    return with_ids(launch_of(type_name, **options), ids)


def _transposed(type_name: str, **options: Any) -> dict[str, Any]:
    arguments = _launch(type_name, **options)
    return {**arguments, "weight_hbm": np.ascontiguousarray(arguments["weight_hbm"].T), "weight_layout": "dv"}


def _backward(arguments: dict[str, Any], **further: Any) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        exact = scores_forward_reference(problem_of(arguments))
    gradients = inputs.numbers(7, *arguments["targets_hbm"].shape) / np.float32(POSITIONS)
    if further.pop("with_entropy", False):
        further |= {
            "grad_lse_hbm": inputs.numbers(6, POSITIONS),
            "entropy_hbm": exact["entropy"].astype(np.float32),
            "grad_entropy_hbm": inputs.numbers(8, POSITIONS),
        }
    return {**arguments, "lse_hbm": exact["lse"].astype(np.float32), "grad_logprob_hbm": gradients, **further}


def _of_backward(make: Any, further: Mapping[str, Any]) -> dict[str, Any]:
    return _backward(make(), **further)


def _with_sum(type_name: str) -> dict[str, Any]:
    arguments = _launch(type_name, bias_hbm=True, **_SCALED)
    return _backward(arguments, with_entropy=True, grad_weight_sum_hbm=inputs.numbers(14, CLASSES, FEATURES))


def _with_maximum(**options: Any) -> dict[str, Any]:
    """Return the arguments of a backward that computes p from ``maximum_hbm`` and ``log_sum_hbm``, and returns only
    dX.
    """
    arguments = _launch("bfloat16", **options)
    problem = problem_of({name: value for name, value in arguments.items() if name != "with_log_sum"})
    z = problem.logits_of(slice(0, POSITIONS), problem.classes_first)
    maximum = z.max(axis=1)
    log_sum = np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1))
    known = {"maximum_hbm": maximum.astype(np.float32), "log_sum_hbm": log_sum.astype(np.float32)}
    return _backward({name: value for name, value in arguments.items() if name != "with_log_sum"}, **known, **_ONE)


def _of_shard(arguments: dict[str, Any]) -> dict[str, Any]:
    weights = {name: arguments[name][_SHARD].copy() for name in ("weight_hbm", "bias_hbm")}
    return {**arguments, **weights, "first_class": _SHARD.start, "num_classes": CLASSES}


def _shard_forward(type_name: str) -> dict[str, Any]:
    return _of_shard(_launch(type_name, bias_hbm=True, **_ALL_ASKED))


def _shard_backward(type_name: str) -> dict[str, Any]:
    return {**_of_shard(_backward(_launch(type_name, bias_hbm=True))), "grad_input_float32": True}


def _result_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    return ("logprob", "lse", *(name for flag, names in _ASKED.items() if arguments.get(flag) for name in names))


def _forward_case(name: str, cores: int, make: Any) -> Case:
    full_name, kernel = f"linear_token_scores_forward: {name}", linear_token_scores_forward
    return Case(full_name, False, (POSITIONS, CLASSES), kernel, make, _result_names, forward_references, cores)


def _backward_case(
    name: str, cores: int, make: Any, references: Any = backward_references, written: str | None = None
) -> Case:
    full_name, kernel = f"linear_token_scores_backward: {name}", linear_token_scores_backward
    return Case(full_name, False, (POSITIONS, CLASSES), kernel, make, gradient_names, references, cores, written)


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    for cores, type_name in enumerate(_TYPES, start=1):
        cores = min(cores, 2)
        make = partial(_launch, type_name)
        yield _forward_case(type_name, cores, make)
        yield _backward_case(type_name, cores, partial(_of_backward, make, {}))
        yield _backward_case(
            f"every gradient, dW added to a sum, {type_name}",
            2,
            partial(_with_sum, type_name),
            written="grad_weight_sum_hbm",
        )
    make = partial(_launch, "bfloat16", 64, bias_hbm=True, **_ALL_ASKED, **_SCALED)
    yield _forward_case("64 ids, all results", 2, make)
    yield _backward_case("64 ids", 2, partial(_of_backward, partial(_launch, "bfloat16", 64), {}))
    make = partial(_launch, "bfloat16", bias_hbm=True, temperature_hbm=OF_POSITIONS)
    yield _forward_case("temperatures of positions", 2, make)
    yield _backward_case("temperatures of positions", 2, partial(_of_backward, make, {}))
    make = partial(_launch, "float32", 1, **_TILING)
    yield _forward_case("one id", 2, make)
    yield _backward_case("one id", 2, partial(_of_backward, make, {}))
    yield _forward_case("an ignored class, maximum and log-sum", 2, partial(_launch, "bfloat16", **_OTHERS, **_TILING))
    yield _backward_case("the input's alone, from maximum and log-sum", 2, partial(_with_maximum, **_OTHERS, **_TILING))
    frozen = {"grad_input_wanted": False, "grad_bias_wanted": False}
    yield _backward_case(
        "the weight's alone", 2, partial(_of_backward, partial(_launch, "bfloat16", bias_hbm=True), frozen)
    )
    make = partial(_transposed, "bfloat16", logit_softcap=5.0, bias_hbm=True)
    yield _forward_case("[D, V], soft cap, bias", 2, make)
    yield _backward_case("[D, V], soft cap, bias", 2, partial(_of_backward, make, {"with_entropy": True}))
    other_type = partial(_launch, "float32", compute_dtype=nl.bfloat16)
    yield _forward_case("products in bfloat16", 2, other_type)
    yield _backward_case("products in bfloat16", 2, partial(_of_backward, other_type, {}))
    yield _forward_case("a shard", 2, partial(_shard_forward, "float32"))
    yield _backward_case("a shard", 2, partial(_shard_backward, "float32"), partial(_shard_references, "float32"))
