# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of ``linear_cross_entropy`` and of ``vocab_parallel_linear_cross_entropy`` of a single rank, in default
tilings.

The calls of ``linear_token_scores`` use its :func:`sizes`, :func:`operands`, :func:`of_entropy` and
:func:`argmax_within`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import INDEX_DTYPES, Array, Draw, array_of, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import (
    REDUCTIONS,
    Recipe,
    divisor_of,
    drawn_targets,
    dtype_of,
    machine,
    reduced,
    with_upstream,
)
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs, ExtendedLoss
from nkilib.experimental.loss.linear.reference import LinearGradients, logit_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference

_ALONE, _MODULE = "linear_cross_entropy", "LinearCrossEntropyLoss"
_HELD = {"linear_weight": "linear.weight", "linear_bias": "linear.bias"}
_GRADIENTS = {"input": "input", "linear_weight": "weight", "linear_bias": "bias"}


def drawn(draw: Draw, function: str) -> Call:
    """A call of one of the two."""
    positions, features, classes = sizes(draw)
    name, dtype = dtype_of(draw)
    targets, ignored = drawn_targets(draw, positions, classes)
    recipe = _recipe(draw, classes, ignored)
    tensors, kind = operands(draw, positions, features, classes, targets)
    shape = (2, positions // 2) if positions % 2 == 0 and draw.chance(0.3) else (positions,)
    is_transposed = draw.chance(0.2)
    weight = tensor_of(tensors["linear_weight"], dtype)
    arguments: dict[str, Any] = {
        "input": tensor_of(tensors["input"], dtype).reshape(*shape, features),
        "linear_weight": weight.t().contiguous().t() if is_transposed else weight,
        "target": tensor_of(targets.reshape(shape), draw.one_of(INDEX_DTYPES)),
        **recipe.given,
    }
    if draw.chance(0.4):
        bias = normal(draw, classes)
        arguments["linear_bias"] = tensor_of(bias, dtype if draw.chance(0.5) else torch.float32)
    wanted = _wanted(draw, "linear_bias" in arguments)
    form = _form(draw, function, arguments, wanted, dtype)
    settings: dict[str, Any] = {
        "N": positions,
        "D": features,
        "V": classes,
        "dtype": name,
        "values": kind,
        "form": form,
    }
    settings |= {"wanted": wanted, "transposed": is_transposed, "bias": "linear_bias" in arguments, "shape": shape}
    settings |= {**recipe.settings, "upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    results = with_upstream(draw, recipe)
    settings["module"] = _MODULE if function == _ALONE and draw.chance(0.2) else None
    tempered = _tempered(draw)  # last, so that all else is as it was drawn before there was a temperature
    arguments |= tempered
    settings |= tempered
    compute = dtype
    if "memory_limit" not in arguments and settings["module"] is None and draw.chance(0.2):
        settings["compute_dtype"], compute = dtype_of(draw)
        arguments["compute_dtype"] = compute
    exact = _Reference(arguments, targets, recipe, wanted, form, dtype, compute)
    # A weight whose gradient is added to a sum requires grad too, and gets none.
    return Call(
        function,
        arguments,
        wanted,
        exact,
        settings,
        settings["upstream"],
        results=results,
        **_through_module(arguments, dtype) if settings["module"] else {},
        added_to={"grad_weight_sum": "grad_weight_sum"} if form == "summed" else {},
    )


def sizes(draw: Draw) -> tuple[int, int, int]:
    """N, D and V: mostly those of the smallest models, where plans have several blocks, groups and stripes."""
    limits = draw.limits
    several = ((500, 2_100), (600, 6_000), (500, 4_000))
    usual, any_size = ((64, 3_000), (300, 12_000), (64, 6_400)), ((1, 3_000), (1, 40_000), (16, 16_384))
    kinds: tuple[tuple[tuple[int, int], ...], ...] = (several, several, usual, usual, any_size)
    if limits.name == "small":
        kinds = (((1, 700), (1, 2_000), (16, 700)),)
    *rest, (least, most) = draw.one_of(kinds)
    positions, classes = draw.sizes(*rest, most=limits.logits)
    (features,) = draw.sizes((least, most), most=max(least, limits.products // (positions * classes)))
    return positions, features, classes


def _recipe(draw: Draw, classes: int, ignored: int) -> Recipe:
    arguments: dict[str, Any] = {"reduction": draw.one_of(REDUCTIONS)}
    if ignored != -100:
        arguments["ignore_index"] = ignored
    weight = draw.rng.random(classes, dtype=np.float32) + np.float32(0.25) if draw.chance(0.2) else None
    if weight is not None:
        arguments["weight"] = tensor_of(weight)
    if draw.chance(0.2):
        arguments["label_smoothing"] = draw.one_of((0.1, 0.01))
    if draw.chance(0.2):
        arguments["logit_softcap"] = draw.one_of((30.0, 5.0))
    if draw.chance(0.2):
        arguments["lse_square_scale"] = draw.one_of((1e-4, 0.01))
    normalizer = None
    if arguments["reduction"] == "mean" and draw.chance(0.2):
        normalizer = 37.0
        arguments["normalizer"] = tensor_of(np.array(normalizer))
    arguments["return_outputs"] = draw.chance(0.2)
    smoothing, square = arguments.get("label_smoothing", 0.0), arguments.get("lse_square_scale", 0.0)
    loss = ExtendedLoss(weight, ignored, smoothing, arguments.get("logit_softcap"), square)
    return Recipe(loss, arguments["reduction"], normalizer, arguments["return_outputs"], arguments)


def _tempered(draw: Draw) -> dict[str, float]:
    arguments = {}
    if draw.chance(0.2):
        arguments["temperature"] = draw.one_of((0.7, 1.3))
    if draw.chance(0.2):
        arguments["logit_scale"] = draw.one_of((0.0625, 1.5))
    return arguments


def operands(draw: Draw, positions: int, features: int, classes: int, targets: Array) -> tuple[dict[str, Array], str]:
    """Hidden states and weights: of usual logits, of a large spread, or of confident targets."""
    kind = draw.one_of(("normal", "normal", "spread", "confident"))
    spread = {"normal": 1.0, "spread": 8.0, "confident": 1.0}[kind]
    weight = normal(draw, classes, features)
    values = normal(draw, positions, features)
    if kind == "confident":  # along the weight of the target, to a logit of 12 above
        chosen = weight[np.clip(targets, 0, classes - 1)]
        values = 0.5 * values + np.float32(12.0 / np.sqrt(features)) * chosen
    return {"input": values, "linear_weight": np.float32(spread / np.sqrt(features)) * weight}, kind


def _wanted(draw: Draw, has_bias: bool) -> tuple[str, ...]:
    """Draw the names of the tensors whose gradients are requested: mostly all."""
    names = ("input", "linear_weight", *(("linear_bias",) if has_bias else ()))
    if draw.chance(0.75):
        return names
    return tuple(name for name in names if draw.chance(0.5)) or (names[1],)


def _form(draw: Draw, function: str, arguments: dict[str, Any], wanted: tuple[str, ...], dtype: torch.dtype) -> str:
    """Two launches, one with a memory limit, or a float32 sum of dW that the backward adds to."""
    classes, features = arguments["linear_weight"].shape
    if draw.chance(0.2) and "linear_weight" in wanted:
        arguments["grad_weight_sum"] = tensor_of(0.1 * normal(draw, classes, features))
        return "summed"
    if function == _ALONE and draw.chance(0.3):
        arguments["memory_limit"] = 1 << 40
        is_one = arguments["reduction"] != "none" and not arguments["return_outputs"] and dtype != torch.float16
        return "one launch" if is_one else "two launches"
    return "two launches"


def _through_module(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of a call through the module. It holds weight and bias, which another layer may share."""
    classes, features = arguments["linear_weight"].shape
    has_bias = "linear_bias" in arguments
    made = {"in_features": features, "num_classes": classes, "bias": has_bias, "dtype": dtype}
    return {"module": _MODULE, "made": made, "held": _HELD}


class _Reference:
    """All results of a call."""

    def __init__(
        self,
        arguments: dict[str, Any],
        targets: Array,
        recipe: Recipe,
        wanted: tuple[str, ...],
        form: str,
        dtype: torch.dtype,
        compute: torch.dtype,
    ) -> None:
        options = array_of(arguments["input"].to(compute))
        bias = arguments.get("linear_bias")
        self._bias_dtype = None if bias is None else numpy_dtype(bias.dtype)
        self._shape, self._recipe, self._wanted, self._form = options.shape, recipe, wanted, form
        self._dtype = numpy_dtype(dtype)
        self._summed = arguments.get("grad_weight_sum")
        self._problem = LinearProblem(
            options.reshape(-1, options.shape[-1]),
            array_of(arguments["linear_weight"].to(compute)),
            targets,
            None if bias is None else array_of(bias).astype(np.float32),
            replace(recipe.loss, temperature=arguments.get("temperature", 1.0)),
            logit_scale=arguments.get("logit_scale", 1.0),
        )

    def __call__(self, results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            self._exact = linear_forward_reference(self._problem)
            self._bounds = linear_forward_bounds(self._problem)
            self._valid = self._problem.options.is_valid(self._problem.targets)
            self._divisor, self._of_divisor = divisor_of(
                self._recipe, self._exact.position_weight, self._bounds["position_weight"]
            )
            computed = {"loss": self._reduced(self._exact.loss, self._bounds["loss"])}
            if self._recipe.return_outputs:
                computed |= self._outputs(results)
            return computed | self._gradients(results)

    def _reduced(self, values: Array, errors: Array) -> Expected:
        errors = np.where(self._valid, errors, 0.0) + SMALLEST_NORMAL
        if self._form == "one launch":  # whose upstream scale is a float32 quotient
            errors = errors + 2.0 * UNIT * np.abs(values)
        return reduced(values, errors, self._recipe, self._divisor, self._of_divisor, self._shape[:-1])

    def _outputs(self, results: Results) -> dict[str, Expected]:
        exact, bounds, shape = self._exact, self._bounds, self._shape[:-1]
        scale = self._recipe.loss.lse_square_scale
        square = np.where(self._valid, scale * np.square(exact.lse), 0.0)
        off = scale * (2.0 * np.abs(exact.lse) + bounds["lse"]) * bounds["lse"] + 2.0 * UNIT * square
        plain = replace(
            self._problem,
            options=replace(self._problem.options, class_weight=None, label_smoothing=0.0, lse_square_scale=0.0),
        )
        of_logprob = np.where(self._valid, linear_forward_bounds(plain)["loss"], 0.0) + SMALLEST_NORMAL
        logprob = -linear_forward_reference(plain).loss
        return {
            "lse": Expected(exact.lse.reshape(shape), bounds["lse"].reshape(shape), np.float32),
            "entropy": Expected(exact.entropy.reshape(shape), bounds["entropy"].reshape(shape), np.float32),
            "logprob": Expected(logprob.reshape(shape), of_logprob.reshape(shape), np.float32),
            "z_loss": self._reduced(square, off),
            "argmax": argmax_within(self._problem, results, exact.argmax, shape),
        }

    def _upstream(self, results: Results) -> tuple[BackwardInputs, Array]:
        """Return the inputs of the backward in float64, and the sizes of what the rounding of quotients may change."""
        positions, lse = len(self._exact.loss), self._exact.lse
        divisor = self._divisor if self._recipe.reduction == "mean" else 1.0

        def spread(name: str, by: float) -> Array:
            upstream = results.upstream.get(name, np.zeros(1)).astype(np.float64).reshape(-1)
            return np.broadcast_to(upstream / by, positions).copy()

        of_square = spread("z_loss", divisor) * 2.0 * self._recipe.loss.lse_square_scale * lse
        of_square = np.where(self._valid, of_square, 0.0)
        of_lse = of_square + spread("lse", 1.0)
        of_logprob = spread("logprob", 1.0) if "logprob" in results.upstream else None
        of_entropy = spread("entropy", 1.0) if "entropy" in results.upstream else None
        entropy = None if of_entropy is None else self._exact.entropy
        return BackwardInputs(lse, spread("loss", divisor), of_lse, of_logprob, entropy, of_entropy), of_square

    def _gradients(self, results: Results) -> dict[str, Expected]:
        upstream, of_square = self._upstream(results)
        exact, bounds = linear_gradients_and_bounds(
            self._problem, upstream, input_dtype=self._dtype, weight_dtype=self._dtype
        )
        further = self._of_lse(upstream, of_square)
        computed = {}
        for name in self._wanted:
            value, error = (getattr(item, _GRADIENTS[name]) for item in (exact, bounds))
            error = error + getattr(further, _GRADIENTS[name])
            error = error + (self._of_divisor + 4.0 * UNIT) * np.abs(value)
            computed[name] = self._stored(name, value, error)
        if self._summed is not None:
            dropped = computed.pop("linear_weight")
            before = array_of(self._summed).astype(np.float64)
            total = before + dropped.value
            error = dropped.error + UNIT * np.abs(total)
            return {f"grad_{name}": value for name, value in computed.items()} | {
                "grad_weight_sum": Expected(total, error, np.float32)
            }
        return {f"grad_{name}": value for name, value in computed.items()}

    def _stored(self, name: str, value: Array, error: Array) -> Expected:
        dtype = self._bias_dtype if name == "linear_bias" else self._dtype
        if name == "linear_bias" and dtype != np.float32:
            half = {2: 2.0**-8 if str(dtype) == "bfloat16" else 2.0**-11}[np.dtype(dtype).itemsize]
            error = error + half * (np.abs(value) + error) + 2.0**-25
        if self._form == "one launch":  # stored once, and multiplied by the upstream gradient, which rounds again
            half = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(str(np.dtype(dtype)), 2.0**-24)
            error = error + half * (np.abs(value) + error) + 2.0**-126
        shape = self._shape if name == "input" else value.shape
        return Expected(value.reshape(shape), error.reshape(shape), dtype)

    def _of_lse(self, upstream: BackwardInputs, of_square: Array) -> LinearGradients:
        """Return the errors of the gradients due to the errors of lse and entropy from the forward."""
        problem, options = self._problem, self._problem.recipe
        weight = problem.classes_first
        of_input, of_weight = np.zeros(problem.input.shape), np.zeros(weight.shape)
        of_bias = np.zeros(len(weight))
        lse, off = self._exact.lse, np.expm1(self._bounds["lse"])
        for rows in problem.row_blocks():
            factors = options.factors(problem.targets[rows], len(weight)).sum(axis=1)
            of_loss = np.abs(np.where(self._valid[rows], upstream.grad_loss[rows], 0.0))
            square = 2.0 * options.lse_square_scale
            sizes = of_loss * (factors + square * np.abs(lse[rows]))
            for item in (upstream.grad_lse, upstream.grad_logprob):
                sizes = sizes if item is None else sizes + np.abs(item[rows])
            relative = self._bounds["lse"][rows] / np.maximum(np.abs(lse[rows]), SMALLEST_NORMAL)
            sizes = sizes * off[rows] + of_loss * square * self._bounds["lse"][rows]
            sizes += np.abs(of_square[rows]) * (relative + self._of_divisor + 4.0 * UNIT)
            log_p = options.scores(problem.logits_of(rows, weight), None) - lse[rows, np.newaxis]
            of_logits = sizes[:, np.newaxis] * np.exp(log_p) / options.temperature
            of_logits += of_entropy(upstream, rows, log_p, self._bounds) / options.temperature
            of_input[rows] = of_logits @ np.abs(weight)
            of_weight += of_logits.T @ np.abs(problem.input[rows].astype(np.float64))
            of_bias += of_logits.sum(axis=0)
        return LinearGradients(of_input, of_weight, of_bias)


def of_entropy(upstream: BackwardInputs, rows: slice, log_p: Array, bounds: dict[str, Array]) -> Array | float:
    """Return the error of h p (log p + H), the entropy's gradient by a logit, due to the errors of lse and entropy.

    Args:
        upstream: the inputs of the backward.
        rows: some positions.
        log_p: the log-probabilities of the rows, [R, V].
        bounds: errors of all results of the forward.
    """
    if upstream.grad_entropy is None or upstream.entropy is None:
        return 0.0
    p, off = np.exp(log_p), bounds["lse"][rows, np.newaxis]
    terms = np.abs(log_p + upstream.entropy[rows, np.newaxis]) * np.expm1(off)
    terms = terms + (off + bounds["entropy"][rows, np.newaxis]) * np.exp(off)
    return np.abs(upstream.grad_entropy[rows, np.newaxis]) * np.where(p == 0.0, 0.0, p * terms)


def argmax_within(problem: LinearProblem, results: Results, exact: Array, shape: tuple[int, ...]) -> Expected:
    """Accept any class whose logit may be the largest within its error, after a cap, which makes large logits equal."""
    inputs, recipe = results.values["argmax"].reshape(-1), problem.recipe
    weight, expected = problem.classes_first, exact.copy()
    for rows in problem.row_blocks():
        logits = recipe.scores(problem.logits_of(rows, weight), None)
        off = logit_bounds(problem.layer, rows, weight) / recipe.temperature + 4.0 * UNIT * np.abs(logits)
        at = np.arange(len(logits)), np.clip(inputs[rows], 0, logits.shape[1] - 1)
        reach = logits[at] + off[at] >= (logits - off).max(axis=1)
        expected[rows] = np.where(reach & (inputs[rows] == at[1]), inputs[rows], expected[rows])
    return Expected(expected.reshape(shape), np.zeros(shape), np.int64)
