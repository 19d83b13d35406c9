# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of ``linear_distillation_loss`` of one rank, in default tilings: models of any types and widths, near
and far.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import DTYPES, INDEX_DTYPES, Array, Draw, array_of, normal, tensor_of
from benchmarks.fuzz.families.common import (
    OF_LAYER,
    drawn_targets,
    dtype_of,
    gradients_of_layer,
    machine,
    summed,
)
from benchmarks.fuzz.families.linear_cross_entropy import operands, sizes
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.linear_distillation.host.bounds import (
    StatisticsErrors,
    pair_forward_bounds,
    pair_gradients_and_bounds,
)
from nkilib.experimental.loss.linear_distillation.host.reference import (
    ModelProblem,
    PairProblem,
    PairUpstream,
    pair_forward_reference,
)

_MODULE: Final = "LinearDistillationLoss"
# What a module's constructor does not take, and a call of it only by name.
_BY_NAME: Final = ("linear_bias", "teacher_bias", "row_weight", "grad_weight_sum")
# Of both models together, in float32.
_FEATURES_MOST: Final = 14_000


def drawn(draw: Draw, function: str) -> Call:
    """A call of it."""
    positions, features, classes = sizes(draw)
    features = min(features, _FEATURES_MOST - 16)
    labels, ignored = drawn_targets(draw, positions, classes)
    tensors, kinds = _models(draw, positions, features, classes, labels)
    shape = (2, positions // 2) if positions % 2 == 0 and draw.chance(0.3) else (positions,)
    options = _options(draw)
    arguments: dict[str, Any] = {
        name: tensor.reshape(*shape, -1) if name.endswith("input") else tensor for name, tensor in tensors.items()
    }
    if draw.chance(0.6):
        arguments["labels"] = tensor_of(labels.reshape(shape), draw.one_of(INDEX_DTYPES))
        options["outputs"] = tuple(name for name in ("entropy", "logprob") if draw.chance(0.4))
        if ignored != -100:
            options["ignore_index"] = ignored
    if draw.chance(0.4):
        options["compute_dtype"] = DTYPES[dtype_of(draw)[0]]
    for name in ("linear_bias", "teacher_bias"):
        if draw.chance(0.3):
            arguments[name] = tensor_of(normal(draw, classes))
    if draw.chance(0.3):
        arguments["row_weight"] = tensor_of(np.abs(normal(draw, *shape)))
    wanted = tuple(gradient for gradient in OF_LAYER if gradient in arguments and draw.chance(0.85)) or (
        "linear_weight",
    )
    is_summed = "linear_weight" in wanted and draw.chance(0.2)
    if is_summed:
        arguments["grad_weight_sum"] = tensor_of(0.1 * normal(draw, classes, features))
    inputs: dict[str, bool] = {name: True for name in (*_BY_NAME, "labels") if name in arguments}
    module = _MODULE if not set(inputs) & set(_BY_NAME) and draw.chance(0.3) else None
    settings: dict[str, Any] = {"N": positions, "D": features, "teacher D": tensors["teacher_input"].shape[-1]}
    settings |= {"V": classes, **kinds, "wanted": wanted, "shape": shape, **inputs, **options}
    settings |= {"compute_dtype": str(options.get("compute_dtype")), "module": module}
    settings |= {"upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    arguments |= options
    is_scored = "logprob" in options.get("outputs", ()) and draw.chance(0.7)
    return Call(
        function,
        arguments,
        wanted,
        _Reference(arguments, labels, wanted),
        settings,
        settings["upstream"],
        results=("loss", "logprob") if is_scored else ("loss",),
        module=module,
        added_to={"grad_weight_sum": "grad_weight_sum"} if is_summed else {},
    )


def _models(
    draw: Draw, positions: int, features: int, classes: int, labels: Array
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Hidden states and weights of both models, and their kinds."""
    values, kind = operands(draw, positions, features, classes, labels)
    is_near = draw.chance(0.25)
    if is_near:  # the student's hidden states, and weights a hundredth off
        noise = np.float32(0.01) * normal(draw, classes, features)
        of_teacher = {"input": values["input"], "weight": values["linear_weight"] * (1 + noise)}
    else:
        most = max(16, draw.limits.products // (positions * classes))
        width = draw.size(16, max(16, min(2 * features, most, _FEATURES_MOST - features)))
        other, _ = operands(draw, positions, width, classes, labels)
        of_teacher = {"input": other["input"], "weight": other["linear_weight"]}
    (name, dtype), (other_name, other_dtype) = dtype_of(draw), dtype_of(draw)
    weight_name, weight_dtype = dtype_of(draw) if draw.chance(0.2) else (name, dtype)
    if is_near:  # rounded otherwise they are farther apart
        other_name, other_dtype = name, dtype
    return {
        "input": tensor_of(values["input"], dtype),
        "linear_weight": tensor_of(values["linear_weight"], weight_dtype),
        "teacher_input": tensor_of(of_teacher["input"], other_dtype),
        "teacher_weight": tensor_of(of_teacher["weight"], other_dtype),
    }, {"dtype": name, "weight": weight_name, "teacher": other_name, "values": kind, "near": is_near}


def _options(draw: Draw) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "direction": draw.one_of(("forward", "reverse")),
        "beta": draw.one_of((None, None, 0.0, 0.5, 0.1, 1.0)),
        "reduction": draw.one_of(("mean", "batchmean", "sum", "none")),
        "temperature": draw.one_of((1.0, 1.0, 2.0, 0.7)),
        "temperature_squared": draw.chance(0.3),
    }
    for name in ("logit_softcap", "teacher_logit_softcap"):
        if draw.chance(0.2):
            arguments[name] = draw.one_of((30.0, 5.0))
    for name in ("logit_scale", "teacher_logit_scale"):
        if draw.chance(0.2):
            arguments[name] = draw.one_of((0.0625, 1.5))
    if draw.chance(0.3):
        arguments["memory_limit"] = draw.one_of((0, 1 << 20, 1 << 40))
    return arguments


class _Reference:
    """All results of a call, of the operands as they are rounded for the products."""

    def __init__(self, arguments: dict[str, Any], labels: Array, wanted: tuple[str, ...]) -> None:
        self._given, self._wanted = arguments, wanted
        self._shape = tuple(arguments["input"].shape[:-1])
        weight = arguments.get("row_weight")
        beta = arguments["beta"]
        self._problem = PairProblem(
            self._model("input", "linear_weight", "linear_bias", ""),
            self._model("teacher_input", "teacher_weight", "teacher_bias", "teacher_"),
            labels.reshape(-1) if "labels" in arguments else None,
            None if weight is None else array_of(weight).reshape(-1),
            (0.0 if arguments["direction"] == "forward" else 1.0) if beta is None else beta,
            arguments.get("ignore_index", -100),
        )

    def _model(self, input: str, weight: str, bias: str, prefix: str) -> ModelProblem:
        inputs = self._given
        compute = self._compute_dtype(inputs[input].dtype)
        x, own_bias = array_of(inputs[input].to(compute)), inputs.get(bias)
        return ModelProblem(
            x.reshape(-1, x.shape[-1]),
            array_of(inputs[weight].to(compute)),
            None if own_bias is None else array_of(own_bias).astype(np.float32),
            logit_scale=inputs.get(f"{prefix}logit_scale", 1.0),
            logit_softcap=inputs.get(f"{prefix}logit_softcap"),
            temperature=inputs["temperature"],
        )

    @property
    def _are_unlike(self) -> bool:
        """Hidden states and weight of the student have unlike types."""
        return bool(self._given["input"].dtype != self._given["linear_weight"].dtype)

    def _compute_dtype(self, own: torch.dtype) -> torch.dtype:
        decided: torch.dtype = self._given["input"].dtype if self._are_unlike else own
        return self._given.get("compute_dtype", decided)

    def __call__(self, results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            self._exact, self._bounds = pair_forward_reference(self._problem), pair_forward_bounds(self._problem)
            computed = {"loss": self._loss()}
            for name in self._given.get("outputs", ()):
                value, error = getattr(self._exact, name), self._bounds[name] + SMALLEST_NORMAL
                computed[name] = Expected(value.reshape(self._shape), error.reshape(self._shape), np.float32)
            return computed | self._gradients(results)

    def _factor(self) -> float:
        """The factor of the losses of positions before they are reduced."""
        return float(self._given["temperature"] ** 2) if self._given["temperature_squared"] else 1.0

    def _divisor(self) -> float:
        counted = float(self._problem.counts.sum())
        return {"mean": counted, "batchmean": float(self._shape[0])}.get(self._given["reduction"], 1.0)

    def _loss(self) -> Expected:
        factor = self._factor()
        value = factor * self._exact.divergence
        error = factor * self._bounds["divergence"] + UNIT * np.abs(value) + SMALLEST_NORMAL
        if self._given["reduction"] == "none":
            return Expected(value.reshape(self._shape), error.reshape(self._shape), np.float32)
        total, off = summed(value, error)
        divisor = self._divisor()
        off = off / divisor + UNIT * abs(total / divisor) + SMALLEST_NORMAL
        return Expected(np.array(total / divisor), np.array(off), np.float32)

    def _upstream(self, results: Results) -> PairUpstream:
        """Return the upstream gradient of each position: float32 quotients and products of float32."""
        of_loss = results.upstream["loss"].astype(np.float32).reshape(-1) / np.float32(self._divisor())
        of_loss = of_loss * np.float32(self._factor())
        of_logprob = results.upstream.get("logprob")
        return PairUpstream.of_results(
            self._exact,
            np.broadcast_to(of_loss, self._problem.num_positions),
            None if of_logprob is None else of_logprob.reshape(-1),
        )

    def _gradients(self, results: Results) -> dict[str, Expected]:
        if not results.upstream:
            return {}
        exact, bounds = pair_gradients_and_bounds(
            self._problem,
            self._upstream(results),
            errors=StatisticsErrors.of_forward(self._bounds),
            input_dtype=np.float32,
            weight_dtype=np.float32,
        )
        gradients = {name: (getattr(exact, OF_LAYER[name]), getattr(bounds, OF_LAYER[name])) for name in self._wanted}
        return gradients_of_layer(self._given, gradients)
