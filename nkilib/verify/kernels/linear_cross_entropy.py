# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of linear cross-entropy, whose inputs are hidden states X and output weights W. dX and dW are their
gradients, p is the softmax of the logits.

The kernels are a forward, a backward and the fused forward-backward. The cases cover options, a shard of the classes,
transposed weights and masked classes. The cases of token scores use the sizes of this module and :func:`problem_of`.
The functions ``..._references`` return the float64 references of a launch, with bounds on the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np

from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear.reference import EVERY_CLASS, ROUNDOFF
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.kernels.extended_cross_entropy import loss_of
from nkilib.verify.step import Array

# Two tiles of each, the second one ragged; three tiles of classes, for two cores.
POSITIONS: Final = 130
FEATURES: Final = 144
CLASSES: Final = 300
_SHARD: Final = slice(150, CLASSES)
_TYPES: Final = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_TILING: Final[dict[str, Any]] = {"position_block": 128, "class_block": 128}
# A temperature of each position.
OF_POSITIONS: Final = np.geomspace(0.25, 8.0, POSITIONS).astype(np.float32)
# The results that a flag adds, in their order.
_ASKED: Final = {
    "with_target": ("target_logit", "position_weight"),
    "with_argmax": ("argmax",),
    "with_entropy": ("entropy",),
    "with_distance_sum": ("distance_sum",),
    "with_log_sum": ("maximum", "log_sum"),
    "with_log_sum_squares": ("log_sum_squares",),
    "with_mean_logit": ("mean_logit",),
}
_ALL_ASKED: Final = dict.fromkeys(_ASKED, True)
_GRADIENTS: Final = {"input": "grad_input", "weight": "grad_weight", "bias": "grad_bias"}

_RECIPE_OF_ALL: Final[dict[str, Any]] = {
    "class_weight_hbm": inputs.class_weights(CLASSES),
    "label_smoothing": 0.1,
    "ignore_index": int(inputs.targets(POSITIONS, CLASSES)[2]),
    "lse_square_scale": 0.01,
}


def _rounded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if arguments.get("compute_dtype") is None:
        return {}
    dtype = _TYPES[str(arguments["compute_dtype"])]
    return {name: arguments[name].astype(dtype) for name in ("input_hbm", "weight_hbm")}


def problem_of(arguments: Mapping[str, Any]) -> LinearProblem:
    """Return the arguments of a launch on all classes in the form that the float64 reference takes.

    X and W are rounded to the type of the matrix products, as in the kernel.
    """
    arguments = {**arguments, **_rounded(arguments)}
    options = loss_of(arguments)
    bias, layout = arguments.get("bias_hbm"), arguments.get("weight_layout", "vd")
    scale = arguments.get("logit_scale", 1.0)
    return LinearProblem(
        arguments["input_hbm"], arguments["weight_hbm"], arguments["targets_hbm"], bias, options, layout, scale
    )


def _lse(arguments: Mapping[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return linear_forward_reference(problem_of(arguments)).lse.astype(np.float32)


def upstream_of(arguments: Mapping[str, Any]) -> BackwardInputs:
    """Return the upstream gradients and the log-sum-exp of a backward, in the form that the float64 reference takes.

    If the launch has no ``lse_hbm``, because it computes the log-sum-exp itself, the exact log-sum-exp is returned.
    """
    if "lse_hbm" not in arguments:
        scale = arguments["grad_scale"] if "grad_scale" in arguments else arguments["grad_scale_hbm"][0]
        return BackwardInputs(_lse(arguments), np.full(POSITIONS, scale, np.float32))
    names = ("grad_lse_hbm", "grad_logprob_hbm", "entropy_hbm", "grad_entropy_hbm")
    return BackwardInputs(arguments["lse_hbm"], arguments["grad_loss_hbm"], *(arguments.get(name) for name in names))


def result_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the forward's results for these arguments, in order."""
    return ("loss", "lse", *(name for flag, names in _ASKED.items() if arguments.get(flag) for name in names))


def forward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 reference of every result of a forward. For a shard of the classes the loss is left out,
    because a shard does not define the loss.
    """
    first, problem = arguments.get("first_class", 0), problem_of(arguments)
    if "num_classes" in arguments:  # a target of another shard has no element here, as one that is ignored
        ignored = problem.options.ignore_index
        is_here = (problem.targets >= first) & (problem.targets < first + problem.vocab_size)
        targets = np.where(is_here & (problem.targets != ignored), problem.targets - first, ignored)
        problem = problem_of({**arguments, "targets_hbm": targets})
    with np.errstate(all="ignore"):
        exact, bounds = linear_forward_reference(problem), linear_forward_bounds(problem)
        z = problem.recipe.scores(problem.logits_of(slice(0, POSITIONS), problem.classes_first), None)
        maximum = z.max(axis=1)
    references = {field.name: Reference(getattr(exact, field.name), bounds.get(field.name)) for field in fields(exact)}
    references["maximum"] = Reference(maximum, bounds["maximum"])
    references["log_sum"] = Reference(exact.lse - maximum, bounds["log_sum"])
    references["argmax"] = Reference((exact.argmax + first).astype(np.int32))
    if "num_classes" in arguments:
        del references["loss"]
    return references


def backward_references(arguments: Mapping[str, Any], classes: slice = EVERY_CLASS) -> References:
    """Return the float64 reference of each gradient.

    Args:
        arguments: the arguments of the launch, with the weight of all classes.
        classes: the classes of the shard whose gradients are returned.
    """
    problem, upstream = problem_of(arguments), upstream_of(arguments)
    with np.errstate(all="ignore"):
        types = {"input_dtype": arguments["input_hbm"].dtype, "weight_dtype": arguments["weight_hbm"].dtype}
        gradients, of_gradients = linear_gradients_and_bounds(problem, upstream, classes, **types)
        exact, bounds = gradients._asdict(), of_gradients._asdict()
    if "grad_weight_sum_hbm" in arguments:
        exact["weight"] = exact["weight"] + arguments["grad_weight_sum_hbm"]
        bounds["weight"] = bounds["weight"] + ROUNDOFF * np.abs(exact["weight"])
    return {_GRADIENTS[name]: Reference(exact[name], bounds[name]) for name in _GRADIENTS}


def _operands(type_name: str) -> dict[str, Any]:
    """Return X, W, targets, a bias and class weights. At every seventh position the target's probability is close to
    1.
    """
    weight = inputs.numbers(12, CLASSES, FEATURES) / np.float32(np.sqrt(FEATURES))
    targets = inputs.targets(POSITIONS, CLASSES)
    hidden = inputs.numbers(11, POSITIONS, FEATURES)
    hidden[::7] += 12.0 * weight[targets[::7]]
    bias = inputs.numbers(13, CLASSES)
    return {
        "input_hbm": hidden.astype(_TYPES[type_name]),
        "weight_hbm": weight.astype(_TYPES[type_name]),
        "targets_hbm": targets,
        "bias_hbm": bias,
        "class_weight_hbm": inputs.class_weights(CLASSES),
    }


def shard_backward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 references of a shard's gradients, cut from the gradients for all classes."""
    return backward_references({**arguments, **_operands(arguments["input_hbm"].dtype.name)}, _SHARD)


def forward_backward_references(arguments: Mapping[str, Any]) -> References:
    """Return the float64 references of the results of the fused forward-backward kernel."""
    forward = forward_references(arguments)
    return {"loss": forward["loss"], "lse": forward["lse"], **backward_references(arguments)}


def launch_of(type_name: str, **options: Any) -> dict[str, Any]:
    """Return the arguments of a launch.

    Args:
        type_name: the type of X and W.
        options: the options of the kernel. ``bias_hbm`` or ``class_weight_hbm`` adds this optional tensor, whatever the
            value.
    """
    arguments = _operands(type_name)
    optional = {name: arguments.pop(name) for name in ("bias_hbm", "class_weight_hbm")}
    arguments |= {name: optional[name] for name in options.keys() & optional.keys()}
    return {**arguments, **{name: value for name, value in options.items() if name not in optional}}


def _transposed(arguments: dict[str, Any]) -> dict[str, Any]:
    weight = np.ascontiguousarray(arguments["weight_hbm"].T)
    return {**arguments, "weight_hbm": weight, "weight_layout": "dv"}


def _masked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with every fifth class masked by a bias of -inf. A target that would be masked moves to the
    next class.
    """
    bias, targets = arguments["bias_hbm"].copy(), arguments["targets_hbm"].copy()
    bias[::5] = -np.inf
    targets[targets % 5 == 0] += 1
    return {**arguments, "bias_hbm": bias, "targets_hbm": targets}


def _backward(arguments: dict[str, Any], **further: Any) -> dict[str, Any]:
    return {
        **arguments,
        "lse_hbm": _lse(arguments),
        "grad_loss_hbm": inputs.numbers(5, POSITIONS) / POSITIONS,
        **further,
    }


def _every_gradient(type_name: str) -> dict[str, Any]:
    """Return arguments of a backward with the upstream gradients of loss, log-sum-exp and log-probability.

    The kernel then computes p from ``maximum_hbm`` and ``log_sum_hbm``, and adds dW to ``grad_weight_sum_hbm``.
    """
    arguments = launch_of(type_name, bias_hbm=True, **_RECIPE_OF_ALL)
    problem = problem_of(arguments)
    z = problem.logits_of(slice(0, POSITIONS), problem.classes_first)
    maximum = z.max(axis=1)
    return _backward(
        arguments,
        grad_lse_hbm=inputs.numbers(6, POSITIONS),
        grad_logprob_hbm=inputs.numbers(7, POSITIONS),
        maximum_hbm=maximum.astype(np.float32),
        log_sum_hbm=np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1)).astype(np.float32),
        grad_weight_sum_hbm=inputs.numbers(14, CLASSES, FEATURES),
    )


def _masked_launch(type_name: str, **options: Any) -> dict[str, Any]:
    return _masked(launch_of(type_name, bias_hbm=True, **options))


def _score_gradients(type_name: str, **options: Any) -> dict[str, Any]:
    arguments = _masked_launch(type_name, **options)
    with np.errstate(all="ignore"):
        entropy = linear_forward_reference(problem_of(arguments)).entropy
    return _backward(
        arguments,
        grad_logprob_hbm=inputs.numbers(7, POSITIONS),
        entropy_hbm=entropy.astype(np.float32),
        grad_entropy_hbm=inputs.numbers(8, POSITIONS),
    )


def _of_shard(arguments: dict[str, Any]) -> dict[str, Any]:
    weights = {name: arguments[name][_SHARD].copy() for name in ("weight_hbm", "bias_hbm", "class_weight_hbm")}
    return {**arguments, **weights, "first_class": _SHARD.start, "num_classes": CLASSES}


def _shard_forward(type_name: str) -> dict[str, Any]:
    return _of_shard({**_operands(type_name), **_ALL_ASKED})


def _shard_backward(type_name: str) -> dict[str, Any]:
    """Return the arguments of a backward on one shard of the classes.

    The shard cannot know the weights of the targets' classes and the sum of all weights, so they are passed too. dX is
    not rounded, because the dX of all shards are added.
    """
    arguments = _backward({**_operands(type_name), "label_smoothing": 0.1})
    weights = arguments["class_weight_hbm"]
    known = {"target_weight_hbm": weights[arguments["targets_hbm"]], "weight_sum": float(weights.sum())}
    return {**_of_shard(arguments), **known, "grad_input_float32": True}


def gradient_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the gradients that a launch with these arguments returns, in order."""
    wanted = {
        "input": arguments.get("grad_input_wanted", True),
        "weight": arguments.get("grad_weight_wanted", True),
        "bias": "bias_hbm" in arguments and arguments.get("grad_bias_wanted", True),
    }
    return tuple(_GRADIENTS[name] for name, is_wanted in wanted.items() if is_wanted)


def _forward_backward_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    return ("loss", "lse", *gradient_names(arguments))


def _forward_case(name: str, cores: int, make: Any, is_quick: bool = False) -> Case:
    full_name, kernel = f"linear_cross_entropy_forward: {name}", linear_cross_entropy_forward
    return Case(full_name, is_quick, (POSITIONS, CLASSES), kernel, make, result_names, forward_references, cores)


def _backward_case(
    name: str, cores: int, make: Any, references: Any = backward_references, written: str | None = None
) -> Case:
    full_name, kernel = f"linear_cross_entropy_backward: {name}", linear_cross_entropy_backward
    return Case(full_name, False, (POSITIONS, CLASSES), kernel, make, gradient_names, references, cores, written)


def _forward_backward_case(name: str, cores: int, make: Any) -> Case:
    full_name, kernel = f"linear_cross_entropy_forward_backward: {name}", linear_cross_entropy_forward_backward
    sizes = (POSITIONS, CLASSES)
    return Case(full_name, False, sizes, kernel, make, _forward_backward_names, forward_backward_references, cores)


def _of_backward(type_name: str, further: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return _backward(launch_of(type_name, **options), **further)


def _transposed_launch(type_name: str, **options: Any) -> dict[str, Any]:
    return _transposed(launch_of(type_name, **options))


def _transposed_backward(type_name: str, **options: Any) -> dict[str, Any]:
    return _backward(_transposed_launch(type_name, **options))


def _masked_backward(type_name: str) -> dict[str, Any]:
    return _backward(_masked_launch(type_name))


def _scaled(type_name: str, **options: Any) -> dict[str, Any]:
    """Return arguments with ``grad_scale_hbm``, a scale of the gradient that only the device knows."""
    return launch_of(type_name, grad_scale_hbm=np.full(1, 1 / POSITIONS, np.float32), **options)


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    all_options, capped = {"bias_hbm": True, **_RECIPE_OF_ALL}, {"logit_softcap": 5.0, "bias_hbm": True}
    blocks = {**_TILING, "scratch_bytes": 4 * 128 * CLASSES}
    scaled = {"temperature": 0.7, "logit_scale": 0.5, "logit_softcap": 5.0}
    mean, input_alone = {"grad_scale": 1 / POSITIONS}, {"grad_weight_wanted": False}
    for cores, type_name in enumerate(_TYPES, start=1):
        cores = min(cores, 2)
        yield _forward_case(f"{type_name}", cores, partial(launch_of, type_name), is_quick=cores == 1)
        yield _backward_case(f"{type_name}", cores, partial(_of_backward, type_name, {}))
        yield _forward_backward_case(f"{type_name}", cores, partial(launch_of, type_name, **mean))
        yield _forward_case(f"all results, {type_name}", 2, partial(launch_of, type_name, **_ALL_ASKED, **_TILING))
        yield _forward_case(
            f"weights, smoothing, z-loss, bias, {type_name}", 2, partial(launch_of, type_name, **all_options)
        )
        yield _backward_case(
            f"every gradient, dW added to a sum, {type_name}",
            2,
            partial(_every_gradient, type_name),
            written="grad_weight_sum_hbm",
        )
        yield _forward_backward_case(
            f"every option, {type_name}", 2, partial(_scaled, type_name, **all_options, **blocks)
        )
    make = partial(launch_of, "bfloat16", **capped, temperature_hbm=OF_POSITIONS)
    yield _forward_case("temperatures of positions", 2, make)
    yield _backward_case("temperatures of positions", 2, partial(_of_backward, "bfloat16", {}, **make.keywords))
    yield _forward_backward_case("temperatures of positions", 2, partial(make, **mean))
    for type_name in ("float32", "bfloat16"):
        yield _forward_case(f"a shard, {type_name}", 2, partial(_shard_forward, type_name))
        yield _backward_case(f"a shard, {type_name}", 2, partial(_shard_backward, type_name), shard_backward_references)
        yield _forward_case(f"masked classes, {type_name}", 2, partial(_masked_launch, type_name))
        scores = {"with_entropy": True, "with_log_sum_squares": True, "with_mean_logit": True, **scaled}
        yield _forward_case(f"scores, masked classes, {type_name}", 2, partial(_masked_launch, type_name, **scores))
        yield _backward_case(f"masked classes, {type_name}", 2, partial(_masked_backward, type_name))
        yield _forward_backward_case(f"masked classes, {type_name}", 2, partial(_masked_launch, type_name, **mean))
    for type_name in _TYPES:
        yield _backward_case(f"gradient of the entropy, {type_name}", 2, partial(_score_gradients, type_name, **scaled))
        other_type = {"compute_dtype": nl.float32 if type_name == "bfloat16" else nl.bfloat16, "bias_hbm": True}
        in_other = f"products in {other_type['compute_dtype']}, {type_name}"
        yield _forward_case(in_other, 2, partial(launch_of, type_name, **other_type))
        yield _backward_case(in_other, 2, partial(_of_backward, type_name, {}, **other_type))
        yield _forward_backward_case(in_other, 2, partial(launch_of, type_name, **other_type, **scaled, **mean))
    yield _forward_case("[D, V], soft cap, bias", 2, partial(_transposed_launch, "bfloat16", **capped))
    yield _backward_case("[D, V], soft cap, bias", 2, partial(_transposed_backward, "bfloat16", **capped))
    yield _forward_backward_case("[D, V], soft cap, bias", 2, partial(_transposed_launch, "bfloat16", **capped, **mean))
    yield _backward_case("the input's alone", 2, partial(_of_backward, "bfloat16", {**input_alone, **_TILING}))
    frozen = {"grad_input_wanted": False, "grad_bias_wanted": False}
    yield _backward_case("the weight's alone", 2, partial(_of_backward, "bfloat16", frozen, bias_hbm=True))
    yield _forward_backward_case("the input's alone", 1, partial(launch_of, "bfloat16", **input_alone, **mean))
    yield _forward_backward_case(
        "the weight's alone", 1, partial(launch_of, "bfloat16", bias_hbm=True, **frozen, **mean)
    )
