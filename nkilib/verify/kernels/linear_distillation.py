# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of distillation from hidden states and output weights of both models."""

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
from nkilib.experimental.loss.linear.host.bounds import ROUNDOFF
from nkilib.experimental.loss.linear.host.reference import EVERY_CLASS
from nkilib.experimental.loss.linear_distillation.host.bounds import (
    mixture_bounds,
    pair_forward_bounds,
    pair_gradient_bounds,
)
from nkilib.experimental.loss.linear_distillation.host.reference import (
    ModelProblem,
    PairProblem,
    PairUpstream,
    Statistics,
    mixture_reference,
    pair_backward_reference,
    pair_forward_reference,
)
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Truth, Truths

# Two tiles of each, of which the second one is ragged; three of classes, for two cores.
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
# The teacher's, beside a student of a type.
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


def problem_of(given: Mapping[str, Any]) -> PairProblem:
    """A launch as the reference takes it, with operands rounded to the type of the products."""
    student, teacher = (_model_of(given, name) for name in _MODELS)
    return PairProblem(
        student,
        teacher,
        given.get("labels_hbm"),
        given.get("row_weight_hbm"),
        given.get("beta", 0.0),
        given.get("ignore_index", -100),
        given.get("first_class", 0),
    )


def _model_of(given: Mapping[str, Any], name: str) -> ModelProblem:
    operand, weight, bias = (given.get(f"{name}_{each}_hbm") for each in ("input", "weight", "bias"))
    if given.get("compute_dtype") is not None:
        dtype = _TYPES[str(given["compute_dtype"])]
        operand, weight = (np.asarray(each).astype(dtype) for each in (operand, weight))
        bias = None if bias is None else bias.astype(dtype).astype(np.float32)
    return ModelProblem(
        np.asarray(operand),
        np.asarray(weight),
        bias,
        given.get(f"{name}_weight_layout", "vd"),
        given.get(f"{name}_logit_scale", 1.0),
        given.get(f"{name}_logit_softcap"),
        given.get("temperature", 1.0),
    )


def statistics_of(given: Mapping[str, Any]) -> Statistics:
    """The log-sum-exps that a launch is given."""
    return Statistics(*(given[f"{name}_hbm"] for name in _STATISTICS))


def forward_truths(given: Mapping[str, Any]) -> Truths:
    """Every result in float64; of a shard those that it defines."""
    problem = problem_of(given)
    with np.errstate(all="ignore"):
        exact, bounds = pair_forward_reference(problem), pair_forward_bounds(problem)
    names = [*_RESULTS, "logprob", "target_logit"]
    if "num_classes" in given:
        names.remove("logprob")
        if problem.is_mixed:
            names = [name for name in names if name not in ("divergence", "moment")]
    return {name: Truth(getattr(exact, name), bounds[name]) for name in names}


def mixture_truths(given: Mapping[str, Any]) -> Truths:
    """The sums of a mixture in float64."""
    problem, statistics = problem_of({"beta": 0.5, **given}), statistics_of(given)
    with np.errstate(all="ignore"):
        exact, bounds = mixture_reference(problem, statistics), mixture_bounds(problem, statistics)
    return {name: Truth(*each) for name, each in zip(_SUMS, zip(exact, bounds, strict=True), strict=True)}


def backward_truths(given: Mapping[str, Any], classes: slice = EVERY_CLASS) -> Truths:
    """The gradients in float64."""
    problem = problem_of(given)
    upstream = PairUpstream(
        statistics_of(given), given["moment_hbm"], given["grad_divergence_hbm"], given.get("grad_logprob_hbm")
    )
    types = {"input_dtype": given["student_input_hbm"].dtype, "weight_dtype": given["student_weight_hbm"].dtype}
    with np.errstate(all="ignore"):
        exact = pair_backward_reference(problem, upstream, classes)._asdict()
        bounds = pair_gradient_bounds(problem, upstream, classes, **types)._asdict()
    if "grad_weight_sum_hbm" in given:
        exact["weight"] = exact["weight"] + given["grad_weight_sum_hbm"]
        bounds["weight"] = bounds["weight"] + ROUNDOFF * np.abs(exact["weight"])
    return {_GRADIENTS[name]: Truth(exact[name], bounds[name]) for name in _GRADIENTS}


def _shard_truths(type_name: str, given: Mapping[str, Any]) -> Truths:
    """As :func:`backward_truths`, of the classes of a shard, from the launch on all."""
    whole = _launch(type_name, **_BIASES)
    held = {name: whole[name] for name in whole if name.endswith(("_weight_hbm", "_bias_hbm"))}
    return backward_truths({**given, **held, "row_weight_hbm": given["row_weight_hbm"], "first_class": 0}, _SHARD)


def _launch(type_name: str, **options: Any) -> dict[str, Any]:
    """The operands, of the optional ones those that ``options`` names, and the options.

    The student's logits have a deviation of 1 and the teacher's of 2; every seventh position of the teacher is
    confident.
    """
    types = dict(zip(_MODELS, (type_name, _TEACHER[type_name]), strict=True))
    labels, found = inputs.targets(POSITIONS, CLASSES), dict[str, Any]()
    for seed, (name, features) in enumerate(zip(_MODELS, (STUDENT_FEATURES, TEACHER_FEATURES), strict=True)):
        weight = (1 + seed) * inputs.numbers(21 + seed, CLASSES, features) / np.float32(np.sqrt(features))
        hidden = inputs.numbers(31 + seed, POSITIONS, features)
        if name == "teacher":
            hidden[::7] += 3.0 * weight[labels[::7]]
        found |= {f"{name}_input_hbm": hidden.astype(_TYPES[types[name]])}
        found |= {f"{name}_weight_hbm": weight.astype(_TYPES[types[name]])}
    optional = {
        "labels_hbm": labels,
        "student_bias_hbm": inputs.numbers(41, CLASSES),
        "teacher_bias_hbm": inputs.numbers(42, CLASSES),
        "row_weight_hbm": np.abs(inputs.numbers(43, POSITIONS)) + np.float32(0.25),
    }
    found |= {name: optional[name] for name in options.keys() & optional.keys()}
    return {**found, **{name: value for name, value in options.items() if name not in optional}}


def _transposed(type_name: str, **options: Any) -> dict[str, Any]:
    given = _launch(type_name, **options)
    for name in _MODELS:
        given[f"{name}_weight_hbm"] = np.ascontiguousarray(given[f"{name}_weight_hbm"].T)
        given[f"{name}_weight_layout"] = "dv"
    return given


def _masked(type_name: str, **options: Any) -> dict[str, Any]:
    """Every fifth class is masked in both models; the labels go to the next one."""
    given = _launch(type_name, **_BIASES, **_LABELS, **options)
    for name in _MODELS:
        given[f"{name}_bias_hbm"][::5] = -np.inf
    given["labels_hbm"][given["labels_hbm"] % 5 == 0] += 1
    return given


def _of_shard(type_name: str, **options: Any) -> dict[str, Any]:
    """The last classes of a launch on all."""
    given = _launch(type_name, **_BIASES, **options)
    held = {f"{name}_{each}_hbm" for name in _MODELS for each in ("weight", "bias")}
    given |= {name: given[name][_SHARD].copy() for name in held}
    return {**given, "first_class": _SHARD.start, "num_classes": CLASSES}


def _with_statistics(given: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """With the log-sum-exps and the moment of a launch on all classes."""
    with np.errstate(all="ignore"):
        exact = pair_forward_reference(problem_of(whole))
    saved = {f"{name}_hbm": getattr(exact, name).astype(np.float32) for name in ("moment", *_STATISTICS)}
    return {**given, **saved}


def _backward(make: Any, further: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = make()
    upstream = {"grad_divergence_hbm": inputs.numbers(51, POSITIONS) / np.float32(POSITIONS)}
    return {**_with_statistics(given, given), **upstream, **further}


def _every_gradient(type_name: str, beta: float) -> dict[str, Any]:
    """Gradients of divergence and log-probability, every option, dW added to a sum."""
    options = {**_LABELS, **_BIASES, **_SCALED, **_TILING, "ignore_index": 5, "beta": beta}
    further = {
        "grad_logprob_hbm": inputs.numbers(52, POSITIONS) / np.float32(POSITIONS),
        "grad_weight_sum_hbm": inputs.numbers(53, CLASSES, STUDENT_FEATURES),
    }
    return _backward(partial(_launch, type_name, **options), further)


def _shard_backward(type_name: str) -> dict[str, Any]:
    """dX, a summand of that of all shards, is not rounded."""
    options = {**_LABELS, "beta": 0.3}
    given = _with_statistics(_of_shard(type_name, **options), _launch(type_name, **_BIASES, **options))
    upstream = {f"grad_{name}_hbm": inputs.numbers(51, POSITIONS) for name in ("divergence", "logprob")}
    return {**given, **upstream, "grad_input_float32": True, "grad_bias_wanted": True}


def _mixture(make: Any, make_whole: Any | None = None) -> dict[str, Any]:
    """The sums take no labels, and no moment."""
    given = make()
    found = _with_statistics(given, given if make_whole is None else make_whole())
    for name in ("moment_hbm", "first_class", "num_classes"):
        found.pop(name, None)
    return found


def result_names(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What the forward returns, in order."""
    asked = {"with_logprob": "logprob", "with_target": "target_logit"}
    return (*_RESULTS, *(name for flag, name in asked.items() if given.get(flag)))


def gradient_names(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Those that are wanted, in order."""
    wanted = {
        "input": given.get("grad_input_wanted", True),
        "weight": given.get("grad_weight_wanted", True),
        "bias": "student_bias_hbm" in given and given.get("grad_bias_wanted", True),
    }
    return tuple(_GRADIENTS[name] for name, is_wanted in wanted.items() if is_wanted)


def _forward_case(name: str, cores: int, make: Any, is_quick: bool = False) -> Case:
    full_name, kernel = f"linear_distillation_forward: {name}", linear_distillation_forward
    return Case(full_name, is_quick, _SIZES, kernel, make, result_names(make()), forward_truths, cores)


def _backward_case(name: str, cores: int, make: Any, truths: Any = backward_truths, written: str | None = None) -> Case:
    full_name, kernel = f"linear_distillation_backward: {name}", linear_distillation_backward
    return Case(full_name, False, _SIZES, kernel, make, gradient_names(make()), truths, cores, written)


def _mixture_case(name: str, cores: int, make: Any) -> Case:
    full_name, kernel = f"linear_distillation_mixture: {name}", linear_distillation_mixture
    held = problem_of(make()).student.vocab_size
    return Case(full_name, False, (POSITIONS, held), kernel, make, _SUMS, mixture_truths, cores)


def cases() -> Iterator[Case]:
    """All of them."""
    for cores, type_name in enumerate(_TYPES, start=1):
        cores = min(cores, 2)
        for loss, beta in _LOSSES.items():
            what, make = f"{loss}, {type_name}", partial(_launch, type_name, beta=beta)
            yield _forward_case(what, cores, make, is_quick=cores == 1 and beta == 0.0)
            yield _backward_case(what, cores, partial(_backward, make, {}))
            every = partial(_launch, type_name, **_LABELS, **_BIASES, **_SCALED, **_ASKED, **_TILING, beta=beta)
            yield _forward_case(f"every option, {what}", 2, every)
            every_gradient = partial(_every_gradient, type_name, beta)
            yield _backward_case(f"every option, {what}", 2, every_gradient, written="grad_weight_sum_hbm")
        yield _mixture_case(type_name, cores, partial(_mixture, partial(_launch, type_name)))
        every = partial(_launch, type_name, **_BIASES, **_SCALED, **_TILING, beta=0.3)
        yield _mixture_case(f"every option, {type_name}", 2, partial(_mixture, every))
        other = {"compute_dtype": nl.float32 if type_name == "bfloat16" else nl.bfloat16, **_BIASES, "beta": 1.0}
        in_other, make = f"products in {other['compute_dtype']}, {type_name}", partial(_launch, type_name, **other)
        yield _forward_case(in_other, 2, make)
        yield _backward_case(in_other, 2, partial(_backward, make, {}))
        yield _mixture_case(in_other, 2, partial(_mixture, partial(_launch, type_name, **{**other, "beta": 0.9})))
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
    yield _mixture_case("a shard", 2, partial(_mixture, partial(_of_shard, "float32", beta=0.3), whole))
    yield _backward_case("a shard", 2, partial(_shard_backward, "float32"), partial(_shard_truths, "float32"))
    one, frozen = {"grad_weight_wanted": False}, {"grad_input_wanted": False, "grad_bias_wanted": False}
    yield _backward_case("the input's alone", 2, partial(_backward, partial(_launch, "bfloat16", **_TILING), one))
    yield _backward_case("the weight's alone", 2, partial(_backward, partial(_launch, "bfloat16", **_BIASES), frozen))
