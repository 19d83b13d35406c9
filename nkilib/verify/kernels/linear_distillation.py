# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of distillation from hidden states X and output weights W of a student and a teacher.

The kernels are a forward, a backward, and the mixture kernel, which is for a shard of the classes and a beta strictly
between 0 and 1. dX and dW are the gradients of the student.

The functions ``..._references`` return the float64 references of a launch, with bounds on the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np

from nkilib.experimental.loss import (
    linear_distillation_backward,
    linear_distillation_forward,
    linear_distillation_mixture,
)
from nkilib.experimental.loss.linear.reference import EVERY_CLASS, ROUNDOFF
from nkilib.experimental.loss.linear_distillation.host.bounds import (
    mixture_bounds,
    pair_forward_bounds,
    pair_gradients_and_bounds,
)
from nkilib.experimental.loss.linear_distillation.host.reference import (
    ModelProblem,
    PairProblem,
    PairUpstream,
    Statistics,
    mixture_reference,
    pair_forward_reference,
)
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References

# Two tiles of each, the second one ragged; three tiles of classes, for two cores.
POSITIONS: Final = 130
STUDENT_FEATURES: Final = 144
TEACHER_FEATURES: Final = 80
CLASSES: Final = 300
_SIZES: Final = (POSITIONS, CLASSES)
_SHARD: Final = slice(150, CLASSES)
_MODELS: Final = ("student", "teacher")
_TYPES: Final = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
# The teacher's type for each type of the student.
_TEACHER: Final = {"float32": "bfloat16", "bfloat16": "bfloat16", "float16": "float32"}
_STATISTICS: Final = ("student_maximum", "student_log_sum", "teacher_maximum", "teacher_log_sum")
_RESULTS: Final = ("divergence", "entropy", "moment", *_STATISTICS)
_SUMS: Final = ("student_terms", "teacher_terms", "student_mass", "teacher_mass")
_GRADIENTS: Final = {"input": "grad_student_input", "weight": "grad_student_weight", "bias": "grad_student_bias"}
_LOSSES: Final = {"forward KL": 0.0, "reverse KL": 1.0, "mixture": 0.3}

_BIASES: Final = {"student_bias_hbm": True, "teacher_bias_hbm": True}
_TILING: Final = {"position_block": 128, "class_block": 128}
_SCALED: Final[dict[str, Any]] = {
    "temperature": 0.7,
    "student_logit_scale": 0.5,
    "student_logit_softcap": 5.0,
    "teacher_logit_scale": 1.5,
    "teacher_logit_softcap": 8.0,
}
_ASKED: Final[dict[str, Any]] = {"with_logprob": True, "with_target": True, "ignore_index": 5}
_LABELS: Final = {"labels_hbm": True, "row_weight_hbm": True}


def _model_of(arguments: Mapping[str, Any], name: str) -> ModelProblem:
    operand, weight, bias = (arguments.get(f"{name}_{part}_hbm") for part in ("input", "weight", "bias"))
    if arguments.get("compute_dtype") is not None:
        dtype = _TYPES[str(arguments["compute_dtype"])]
        operand, weight = (np.asarray(part).astype(dtype) for part in (operand, weight))
    return ModelProblem(
        np.asarray(operand),
        np.asarray(weight),
        bias,
        arguments.get(f"{name}_weight_layout", "vd"),
        arguments.get(f"{name}_logit_scale", 1.0),
        arguments.get(f"{name}_logit_softcap"),
        arguments.get("temperature_hbm", arguments.get("temperature", 1.0)),
    )


def problem_of(arguments: Mapping[str, Any]) -> PairProblem:
    """Return the arguments of a launch in the form that the float64 reference takes, with X and W rounded to the type
    of the matrix products.
    """
    student, teacher = (_model_of(arguments, name) for name in _MODELS)
    return PairProblem(
        student,
        teacher,
        arguments.get("labels_hbm"),
        arguments.get("row_weight_hbm"),
        arguments.get("beta", 0.0),
        arguments.get("ignore_index", -100),
        arguments.get("first_class", 0),
    )


def statistics_of(arguments: Mapping[str, Any]) -> Statistics:
    """Return the log-sum-exps of both models, which are arguments of a backward or mixture launch."""
    return Statistics(*(arguments[f"{name}_hbm"] for name in _STATISTICS))


def forward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 reference of every result of a forward. For a shard of the classes, the results that a shard
    does not define are left out.
    """
    problem = problem_of(arguments)
    with np.errstate(all="ignore"):
        exact, bounds = pair_forward_reference(problem), pair_forward_bounds(problem)
    names = [*_RESULTS, "logprob", "target_logit"]
    if "num_classes" in arguments:
        names.remove("logprob")
        if problem.is_mixed:
            names = [name for name in names if name not in ("divergence", "moment")]
    return {name: Reference(getattr(exact, name), bounds[name]) for name in names}


def mixture_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 references of the sums over a shard that the mixture kernel computes."""
    problem, statistics = problem_of({"beta": 0.5, **arguments}), statistics_of(arguments)
    with np.errstate(all="ignore"):
        exact, bounds = mixture_reference(problem, statistics), mixture_bounds(problem, statistics)
    return {name: Reference(*field) for name, field in zip(_SUMS, zip(exact, bounds, strict=True), strict=True)}


def backward_references(arguments: Mapping[str, Any], classes: slice = EVERY_CLASS) -> References:
    """Return the float64 reference of each gradient.

    Args:
        arguments: the arguments of the launch, with the weights of all classes.
        classes: the classes of the shard whose gradients are returned.
    """
    problem = problem_of(arguments)
    upstream = PairUpstream(
        statistics_of(arguments),
        arguments["moment_hbm"],
        arguments["grad_divergence_hbm"],
        arguments.get("grad_logprob_hbm"),
    )
    types = {"input_dtype": arguments["student_input_hbm"].dtype, "weight_dtype": arguments["student_weight_hbm"].dtype}
    with np.errstate(all="ignore"):
        gradients, of_gradients = pair_gradients_and_bounds(problem, upstream, classes, **types)
        exact, bounds = gradients._asdict(), of_gradients._asdict()
    if "grad_weight_sum_hbm" in arguments:
        exact["weight"] = exact["weight"] + arguments["grad_weight_sum_hbm"]
        bounds["weight"] = bounds["weight"] + ROUNDOFF * np.abs(exact["weight"])
    return {_GRADIENTS[name]: Reference(exact[name], bounds[name]) for name in _GRADIENTS}


def _launch(type_name: str, **options: Any) -> dict[str, Any]:
    """Return the arguments of a launch. ``options`` has the options of the kernel; the name of an optional tensor among
    them adds this tensor.

    The student's logits have a standard deviation of 1 and the teacher's of 2; at every seventh position the teacher is
    confident.
    """
    types = dict(zip(_MODELS, (type_name, _TEACHER[type_name]), strict=True))
    labels, operands = inputs.targets(POSITIONS, CLASSES), dict[str, Any]()
    for seed, (name, features) in enumerate(zip(_MODELS, (STUDENT_FEATURES, TEACHER_FEATURES), strict=True)):
        weight = (1 + seed) * inputs.numbers(21 + seed, CLASSES, features) / np.float32(np.sqrt(features))
        hidden = inputs.numbers(31 + seed, POSITIONS, features)
        if name == "teacher":
            hidden[::7] += 3.0 * weight[labels[::7]]
        operands |= {f"{name}_input_hbm": hidden.astype(_TYPES[types[name]])}
        operands |= {f"{name}_weight_hbm": weight.astype(_TYPES[types[name]])}
    optional = {
        "labels_hbm": labels,
        "student_bias_hbm": inputs.numbers(41, CLASSES),
        "teacher_bias_hbm": inputs.numbers(42, CLASSES),
        "row_weight_hbm": np.abs(inputs.numbers(43, POSITIONS)) + np.float32(0.25),
    }
    operands |= {name: optional[name] for name in options.keys() & optional.keys()}
    return {**operands, **{name: value for name, value in options.items() if name not in optional}}


def _shard_references(type_name: str, arguments: Mapping[str, Any]) -> References:
    whole = _launch(type_name, **_BIASES)
    weights = {name: whole[name] for name in whole if name.endswith(("_weight_hbm", "_bias_hbm"))}
    return backward_references(
        {**arguments, **weights, "row_weight_hbm": arguments["row_weight_hbm"], "first_class": 0}, _SHARD
    )


def _transposed(type_name: str, **options: Any) -> dict[str, Any]:
    arguments = _launch(type_name, **options)
    for name in _MODELS:
        arguments[f"{name}_weight_hbm"] = np.ascontiguousarray(arguments[f"{name}_weight_hbm"].T)
        arguments[f"{name}_weight_layout"] = "dv"
    return arguments


def _masked(type_name: str, **options: Any) -> dict[str, Any]:
    """Return arguments with every fifth class masked in both models. A label that would be masked moves to the next
    class.
    """
    arguments = _launch(type_name, **_BIASES, **_LABELS, **options)
    for name in _MODELS:
        arguments[f"{name}_bias_hbm"][::5] = -np.inf
    arguments["labels_hbm"][arguments["labels_hbm"] % 5 == 0] += 1
    return arguments


def _of_shard(type_name: str, **options: Any) -> dict[str, Any]:
    arguments = _launch(type_name, **_BIASES, **options)
    divided = {f"{name}_{part}_hbm" for name in _MODELS for part in ("weight", "bias")}
    arguments |= {name: arguments[name][_SHARD].copy() for name in divided}
    return {**arguments, "first_class": _SHARD.start, "num_classes": CLASSES}


def _with_statistics(arguments: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a backward: ``arguments`` with the log-sum-exps and ``moment_hbm`` of the launch
    ``whole``.
    """
    with np.errstate(all="ignore"):
        exact = pair_forward_reference(problem_of(whole))
    saved = {f"{name}_hbm": getattr(exact, name).astype(np.float32) for name in ("moment", *_STATISTICS)}
    return {**arguments, **saved}


def _backward(make: Any, further: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = make()
    upstream = {"grad_divergence_hbm": inputs.numbers(51, POSITIONS) / np.float32(POSITIONS)}
    return {**_with_statistics(arguments, arguments), **upstream, **further}


def _every_gradient(type_name: str, beta: float) -> dict[str, Any]:
    """Return arguments of a backward with every option: upstream gradients of divergence and log-probability, and
    ``grad_weight_sum_hbm``, to which dW is added.
    """
    options = {**_LABELS, **_BIASES, **_SCALED, **_TILING, "ignore_index": 5, "beta": beta}
    further = {
        "grad_logprob_hbm": inputs.numbers(52, POSITIONS) / np.float32(POSITIONS),
        "grad_weight_sum_hbm": inputs.numbers(53, CLASSES, STUDENT_FEATURES),
    }
    return _backward(partial(_launch, type_name, **options), further)


def _shard_backward(type_name: str) -> dict[str, Any]:
    """Return the arguments of a backward on one shard. dX is float32, because the sum over all shards is rounded
    later.
    """
    options = {**_LABELS, "beta": 0.3}
    arguments = _with_statistics(_of_shard(type_name, **options), _launch(type_name, **_BIASES, **options))
    upstream = {f"grad_{name}_hbm": inputs.numbers(51, POSITIONS) for name in ("divergence", "logprob")}
    return {**arguments, **upstream, "grad_input_float32": True, "grad_bias_wanted": True}


def _mixture(make: Any, make_whole: Any | None = None) -> dict[str, Any]:
    """Return the arguments of the mixture kernel, which has no ``moment_hbm``, ``first_class`` and ``num_classes``.

    Args:
        make: a function that makes the arguments of a forward.
        make_whole: a function that makes the arguments of the forward on all classes; None if ``make`` does.
    """
    arguments = make()
    mixture = _with_statistics(arguments, arguments if make_whole is None else make_whole())
    for name in ("moment_hbm", "first_class", "num_classes"):
        mixture.pop(name, None)
    return mixture


def result_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the forward's results for these arguments, in order."""
    asked = {"with_logprob": "logprob", "with_target": "target_logit"}
    return (*_RESULTS, *(name for flag, name in asked.items() if arguments.get(flag)))


def gradient_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the gradients that a launch with these arguments returns, in order."""
    wanted = {
        "input": arguments.get("grad_input_wanted", True),
        "weight": arguments.get("grad_weight_wanted", True),
        "bias": "student_bias_hbm" in arguments and arguments.get("grad_bias_wanted", True),
    }
    return tuple(_GRADIENTS[name] for name, is_wanted in wanted.items() if is_wanted)


def _forward_case(name: str, cores: int, make: Any, is_quick: bool = False) -> Case:
    full_name, kernel = f"linear_distillation_forward: {name}", linear_distillation_forward
    return Case(full_name, is_quick, _SIZES, kernel, make, result_names, forward_references, cores)


def _backward_case(
    name: str, cores: int, make: Any, references: Any = backward_references, written: str | None = None
) -> Case:
    full_name, kernel = f"linear_distillation_backward: {name}", linear_distillation_backward
    return Case(full_name, False, _SIZES, kernel, make, gradient_names, references, cores, written)


def _mixture_case(name: str, cores: int, make: Any, classes: int = CLASSES) -> Case:
    full_name, kernel = f"linear_distillation_mixture: {name}", linear_distillation_mixture
    return Case(full_name, False, (POSITIONS, classes), kernel, make, _SUMS, mixture_references, cores)


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    for cores, type_name in enumerate(_TYPES, start=1):
        cores = min(cores, 2)
        for loss, beta in _LOSSES.items():
            suffix, make = f"{loss}, {type_name}", partial(_launch, type_name, beta=beta)
            yield _forward_case(suffix, cores, make, is_quick=cores == 1 and beta == 0.0)
            yield _backward_case(suffix, cores, partial(_backward, make, {}))
            all_options = partial(_launch, type_name, **_LABELS, **_BIASES, **_SCALED, **_ASKED, **_TILING, beta=beta)
            yield _forward_case(f"every option, {suffix}", 2, all_options)
            every_gradient = partial(_every_gradient, type_name, beta)
            yield _backward_case(f"every option, {suffix}", 2, every_gradient, written="grad_weight_sum_hbm")
        yield _mixture_case(type_name, cores, partial(_mixture, partial(_launch, type_name)))
        all_options = partial(_launch, type_name, **_BIASES, **_SCALED, **_TILING, beta=0.3)
        yield _mixture_case(f"every option, {type_name}", 2, partial(_mixture, all_options))
        other_type = {"compute_dtype": nl.float32 if type_name == "bfloat16" else nl.bfloat16, **_BIASES, "beta": 1.0}
        in_other, make = (
            f"products in {other_type['compute_dtype']}, {type_name}",
            partial(_launch, type_name, **other_type),
        )
        yield _forward_case(in_other, 2, make)
        yield _backward_case(in_other, 2, partial(_backward, make, {}))
        yield _mixture_case(in_other, 2, partial(_mixture, partial(_launch, type_name, **{**other_type, "beta": 0.9})))
    of_positions = np.geomspace(0.25, 8.0, POSITIONS).astype(np.float32)
    make = partial(_launch, "bfloat16", **_LABELS, **_BIASES, beta=0.3, temperature_hbm=of_positions)
    yield _forward_case("temperatures of positions", 2, make)
    yield _backward_case("temperatures of positions", 2, partial(_backward, make, {}))
    make = partial(_launch, "bfloat16", beta=0.3, temperature_hbm=of_positions)
    yield _mixture_case("temperatures of positions", 2, partial(_mixture, make))
    for loss, beta in _LOSSES.items():
        make = partial(_masked, "bfloat16", beta=beta, **_SCALED)
        yield _forward_case(f"masked classes, {loss}", 2, make)
        yield _backward_case(f"masked classes, {loss}", 2, partial(_backward, make, {}))
        shard = partial(_of_shard, "float32", **_LABELS, **_ASKED, beta=beta)
        yield _forward_case(f"a shard, {loss}", 2, shard)
        make = partial(_transposed, "bfloat16", **_BIASES, beta=beta)
        yield _forward_case(f"[D, V], {loss}", 2, make)
        yield _backward_case(f"[D, V], {loss}", 2, partial(_backward, make, {}))
    yield _forward_case("mixture, both products twice", 2, partial(_launch, "bfloat16", beta=0.5, memory_limit=0))
    yield _mixture_case("[D, V]", 2, partial(_mixture, partial(_transposed, "bfloat16", beta=0.3)))
    whole = partial(_launch, "float32", **_BIASES, beta=0.3)
    yield _mixture_case(
        "a shard", 2, partial(_mixture, partial(_of_shard, "float32", beta=0.3), whole), CLASSES - _SHARD.start
    )
    yield _backward_case("a shard", 2, partial(_shard_backward, "float32"), partial(_shard_references, "float32"))
    input_alone, frozen = {"grad_weight_wanted": False}, {"grad_input_wanted": False, "grad_bias_wanted": False}
    yield _backward_case(
        "the input's alone", 2, partial(_backward, partial(_launch, "bfloat16", **_TILING), input_alone)
    )
    yield _backward_case("the weight's alone", 2, partial(_backward, partial(_launch, "bfloat16", **_BIASES), frozen))
