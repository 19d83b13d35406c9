# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of ``linear_token_scores`` of one rank, in default tilings: operands of like and unlike types, one
target id and several.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import DTYPES, INDEX_DTYPES, Array, Draw, array_of, normal, tensor_of
from benchmarks.fuzz.families.common import OF_LAYER, drawn_targets, dtype_of, gradients_of_layer, machine
from benchmarks.fuzz.families.linear_cross_entropy import argmax_within, of_entropy, operands, sizes
from nkilib.core.host.error_bounds import SMALLEST_NORMAL
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs, ExtendedLoss
from nkilib.experimental.loss.linear.reference import LinearGradients
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)

_OUTPUTS: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")
_DIFFERENTIABLE: Final = ("logprob", "entropy", "lse")


def drawn(draw: Draw, function: str) -> Call:
    """A call of it."""
    positions, features, classes = sizes(draw)
    name, dtype = dtype_of(draw)
    ids = draw.one_of((1, 2, 5, 9, 64)) if draw.chance(0.3) else 0
    targets, ignored = drawn_targets(draw, positions * max(ids, 1), classes)
    values, kind = operands(draw, positions, features, classes, targets[:positions])
    if ids > 0:
        targets = targets.reshape(positions, ids)
    shape = (2, positions // 2) if positions % 2 == 0 and draw.chance(0.3) else (positions,)
    inputs, compute, weight_dtype = _recipe(draw, ignored), dtype, dtype
    if draw.chance(0.4):
        weight_dtype, compute = DTYPES[dtype_of(draw)[0]], DTYPES[dtype_of(draw)[0]]
        inputs["compute_dtype"] = compute
    arguments: dict[str, Any] = {
        "input": tensor_of(values["input"], dtype).reshape(*shape, features),
        "linear_weight": tensor_of(values["linear_weight"], weight_dtype),
        "target": tensor_of(targets.reshape(*shape, *targets.shape[1:]), draw.one_of(INDEX_DTYPES)),
        **inputs,
    }
    if draw.chance(0.4):
        arguments["linear_bias"] = tensor_of(normal(draw, classes))
    wanted = tuple(gradient for gradient in OF_LAYER if gradient in arguments and draw.chance(0.85)) or (
        "linear_weight",
    )
    is_summed = "linear_weight" in wanted and draw.chance(0.2)
    if is_summed:
        arguments["grad_weight_sum"] = tensor_of(0.1 * normal(draw, classes, features))
    settings: dict[str, Any] = {"N": positions, "D": features, "V": classes, "K": ids, "dtype": name}
    settings |= {"values": kind, "weight": str(weight_dtype), "wanted": wanted, "summed": is_summed, "shape": shape}
    settings |= {"bias": "linear_bias" in arguments, **inputs, "compute_dtype": str(compute)}
    settings |= {"upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    there = [item for item in _DIFFERENTIABLE[1:] if item in inputs["outputs"] and draw.chance(0.6)]
    return Call(
        function,
        arguments,
        wanted,
        (_ReferenceOfIds if ids > 0 else _Reference)(arguments, targets, wanted, compute),
        settings,
        settings["upstream"],
        results=("logprob", *there) if draw.chance(0.8) or not there else tuple(there),
        added_to={"grad_weight_sum": "grad_weight_sum"} if is_summed else {},
    )


def _recipe(draw: Draw, ignored: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"outputs": tuple(output for output in _OUTPUTS if draw.chance(0.5))}
    if ignored != -100:
        arguments["ignore_index"] = ignored
    if draw.chance(0.2):
        arguments["logit_softcap"] = draw.one_of((30.0, 5.0))
    if draw.chance(0.4):
        arguments["temperature"] = draw.one_of((0.7, 1.3))
    if draw.chance(0.2):
        arguments["logit_scale"] = draw.one_of((0.0625, 1.5))
    return arguments


class _Reference:
    """All results of a call, of the operands as they are rounded for the products."""

    def __init__(
        self, arguments: dict[str, Any], targets: Array, wanted: tuple[str, ...], compute: torch.dtype
    ) -> None:
        self._given, self._wanted = arguments, wanted
        self._shape = tuple(arguments["input"].shape[:-1])
        bias: Tensor | None = arguments.get("linear_bias")
        loss = ExtendedLoss(
            None,
            arguments.get("ignore_index", -100),
            0.0,
            arguments.get("logit_softcap"),
            0.0,
            temperature=arguments.get("temperature", 1.0),
        )
        x = array_of(arguments["input"].to(compute))
        self._problem = LinearProblem(
            x.reshape(-1, x.shape[-1]),
            array_of(arguments["linear_weight"].to(compute)),
            targets,
            None if bias is None else array_of(bias).astype(np.float32),
            loss,
            logit_scale=arguments.get("logit_scale", 1.0),
        )

    def __call__(self, results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            self._exact, self._bounds = self._scores()
            computed = {"logprob": self._score("logprob")}
            for name in self._given["outputs"]:
                if name == "argmax":
                    computed[name] = argmax_within(self._problem, results, self._exact["argmax"], self._shape)
                else:
                    computed[name] = self._score(name)
            return computed | self._gradients(results)

    def _scores(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """All scores by name, and their errors."""
        exact, bounds = linear_forward_reference(self._problem), linear_forward_bounds(self._problem)
        scores = {name: getattr(exact, name) for name in _OUTPUTS}
        return {**scores, "logprob": -exact.loss}, {**bounds, "logprob": bounds["loss"]}

    def _score(self, name: str) -> Expected:
        values = self._exact[name]
        shape = (*self._shape, *values.shape[1:])
        return Expected(values.reshape(shape), (self._bounds[name] + SMALLEST_NORMAL).reshape(shape), np.float32)

    def _upstream(self, arguments: dict[str, Array]) -> BackwardInputs:
        """Return the upstream gradient of each position, or its size if there are several ids."""
        of_entropy = arguments.get("entropy")
        return BackwardInputs(
            self._exact["lse"],
            -arguments["logprob"] if "logprob" in arguments else np.zeros(len(self._exact["lse"])),
            arguments.get("lse"),
            None,
            None if of_entropy is None else self._exact["entropy"],
            of_entropy,
        )

    def _exact_gradients(self, arguments: dict[str, Array]) -> tuple[LinearGradients, LinearGradients]:
        """Gradients and their errors, for the upstream gradients of each position."""
        return linear_gradients_and_bounds(self._problem, self._upstream(arguments))

    def _gradients(self, results: Results) -> dict[str, Expected]:
        inputs: dict[str, Array] = {
            name: gradient.astype(np.float64).reshape(-1) for name, gradient in results.upstream.items()
        }
        (exact, bounds), further = self._exact_gradients(inputs), self._of_statistics(inputs)
        gradients = {}
        for name in self._wanted:
            value, *errors = (getattr(group, OF_LAYER[name]) for group in (exact, bounds, further))
            gradients[name] = value, sum(errors)
        return gradients_of_layer(self._given, gradients)

    def _size(self, arguments: dict[str, Array]) -> Array:
        """Return the size of the upstream gradient of each position's log-probability."""
        valid = self._problem.recipe.is_valid(self._problem.targets)
        return np.where(valid, np.abs(arguments["logprob"]) if "logprob" in arguments else 0.0, 0.0)

    def _of_statistics(self, arguments: dict[str, Array]) -> LinearGradients:
        """Return the errors of the gradients due to the errors of lse and entropy from the forward."""
        problem, recipe = self._problem, self._problem.recipe
        weight, lse = problem.classes_first, self._exact["lse"]
        of_input, of_weight = np.zeros(problem.input.shape), np.zeros(weight.shape)
        of_bias = np.zeros(len(weight))
        of_lse, upstream = self._size(arguments), self._upstream({**arguments, "logprob": self._size(arguments)})
        if upstream.grad_lse is not None:
            of_lse = of_lse + np.abs(upstream.grad_lse)
        for rows in problem.row_blocks():
            log_p = recipe.scores(problem.logits_of(rows, weight), None) - lse[rows, np.newaxis]
            size = of_lse[rows, np.newaxis] * np.exp(log_p) * np.expm1(self._bounds["lse"][rows, np.newaxis])
            size = (size + of_entropy(upstream, rows, log_p, self._bounds)) / recipe.temperature
            of_input[rows] = size @ np.abs(weight)
            of_weight += size.T @ np.abs(problem.input[rows].astype(np.float64))
            of_bias += size.sum(axis=0)
        return LinearGradients(of_input, of_weight, of_bias)


class _ReferenceOfIds(_Reference):
    """The reference for several target ids per position, [N, K]."""

    def _scores(self) -> tuple[dict[str, Array], dict[str, Array]]:
        return scores_forward_reference(self._problem), scores_forward_bounds(self._problem)

    def _exact_gradients(self, arguments: dict[str, Array]) -> tuple[LinearGradients, LinearGradients]:
        of_ids, of_entropy = arguments.get("logprob"), arguments.get("entropy")
        upstream = ScoreInputs(
            self._exact["lse"],
            None if of_ids is None else of_ids.reshape(self._problem.targets.shape),
            arguments.get("lse"),
            None if of_entropy is None else self._exact["entropy"],
            of_entropy,
        )
        return scores_gradients_and_bounds(self._problem, upstream)

    def _size(self, arguments: dict[str, Array]) -> Array:
        targets = self._problem.targets
        if "logprob" not in arguments:
            return np.zeros(len(targets))
        valid = targets != self._problem.recipe.ignore_index
        return np.where(valid, np.abs(arguments["logprob"].reshape(targets.shape)), 0.0).sum(axis=1)
