"""linear_token_scores of a single rank, in default tilings, of operands of like and unlike types."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import Draw
from benchmarks.fuzz.families.common import dtype_of, machine, stored
from benchmarks.fuzz.families.linear import argmax_within, of_entropy, operands, sizes
from benchmarks.fuzz.families.positions import drawn_targets
from benchmarks.fuzz.values import DTYPES, INDEX_DTYPES, Array, array_of, normal, numpy_dtype, tensor_of
from nkilib.core.host.rounding import SMALLEST_NORMAL
from nkilib.experimental.loss.cross_entropy.host.reference import BackwardInputs, ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradient_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearGradients,
    LinearProblem,
    linear_backward_reference,
    linear_forward_reference,
)

_OUTPUTS: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")
_DIFFERENTIABLE: Final = ("logprob", "entropy", "lse")
_GRADIENTS: Final = {"input": "input", "linear_weight": "weight", "linear_bias": "bias"}


def drawn(draw: Draw, function: str) -> Call:
    """A call of it."""
    positions, features, classes = sizes(draw)
    name, dtype = dtype_of(draw)
    targets, ignored = drawn_targets(draw, positions, classes)
    values, kind = operands(draw, positions, features, classes, targets)
    shape = (2, positions // 2) if positions % 2 == 0 and draw.chance(0.3) else (positions,)
    given, compute, weight_dtype = _recipe(draw, ignored), dtype, dtype
    if draw.chance(0.4):
        weight_dtype, compute = DTYPES[dtype_of(draw)[0]], DTYPES[dtype_of(draw)[0]]
        given["compute_dtype"] = compute
    arguments: dict[str, Any] = {
        "input": tensor_of(values["input"], dtype).reshape(*shape, features),
        "linear_weight": tensor_of(values["linear_weight"], weight_dtype),
        "target": tensor_of(targets.reshape(shape), draw.one_of(INDEX_DTYPES)),
        **given,
    }
    if draw.chance(0.4):
        arguments["linear_bias"] = tensor_of(normal(draw, classes))
    wanted = tuple(each for each in _GRADIENTS if each in arguments and draw.chance(0.85)) or ("linear_weight",)
    is_summed = "linear_weight" in wanted and draw.chance(0.2)
    if is_summed:
        arguments["grad_weight_sum"] = tensor_of(0.1 * normal(draw, classes, features))
    settings: dict[str, Any] = {"N": positions, "D": features, "V": classes, "dtype": name, "values": kind}
    settings |= {"weight": str(weight_dtype), "wanted": wanted, "summed": is_summed, "shape": shape}
    settings |= {"bias": "linear_bias" in arguments, **given, "compute_dtype": str(compute)}
    settings |= {"upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    there = [each for each in _DIFFERENTIABLE[1:] if each in given["outputs"] and draw.chance(0.6)]
    return Call(
        function,
        arguments,
        wanted,
        _Truth(arguments, targets, wanted, compute),
        settings,
        settings["upstream"],
        results=("logprob", *there) if draw.chance(0.8) or not there else tuple(there),
        added_to={"grad_weight_sum": "grad_weight_sum"} if is_summed else {},
    )


def _recipe(draw: Draw, ignored: int) -> dict[str, Any]:
    given: dict[str, Any] = {"outputs": tuple(each for each in _OUTPUTS if draw.chance(0.5))}
    if ignored != -100:
        given["ignore_index"] = ignored
    if draw.chance(0.2):
        given["logit_softcap"] = draw.one_of((30.0, 5.0))
    if draw.chance(0.4):
        given["temperature"] = draw.one_of((0.7, 1.3))
    if draw.chance(0.2):
        given["logit_scale"] = draw.one_of((0.0625, 1.5))
    return given


class _Truth:
    """All results of a call, of the operands as they are rounded for the products."""

    def __init__(
        self, arguments: dict[str, Any], targets: Array, wanted: tuple[str, ...], compute: torch.dtype
    ) -> None:
        self._given, self._wanted = arguments, wanted
        self._shape = tuple(arguments["target"].shape)
        rounds = "compute_dtype" in arguments
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
            None if bias is None else array_of(bias.to(compute) if rounds else bias).astype(np.float32),
            loss,
            logit_scale=arguments.get("logit_scale", 1.0),
        )

    def __call__(self, results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            self._exact, self._bounds = linear_forward_reference(self._problem), linear_forward_bounds(self._problem)
            computed = {"logprob": self._score(-self._exact.loss, self._bounds["loss"])}
            for name in self._given["outputs"]:
                if name == "argmax":
                    computed[name] = argmax_within(self._problem, results, self._exact.argmax, self._shape)
                else:
                    computed[name] = self._score(getattr(self._exact, name), self._bounds[name])
            return computed | self._gradients(results)

    def _score(self, values: Array, errors: Array) -> Expected:
        return Expected(values.reshape(self._shape), (errors + SMALLEST_NORMAL).reshape(self._shape), np.float32)

    def _gradients(self, results: Results) -> dict[str, Expected]:
        given = {name: each.astype(np.float64).reshape(-1) for name, each in results.upstream.items()}
        of_entropy = given.get("entropy")
        upstream = BackwardInputs(
            self._exact.lse,
            -given["logprob"] if "logprob" in given else np.zeros(len(self._exact.loss)),
            given.get("lse"),
            None,
            None if of_entropy is None else self._exact.entropy,
            of_entropy,
        )
        exact = linear_backward_reference(self._problem, upstream)
        bounds, further = linear_gradient_bounds(self._problem, upstream), self._of_statistics(upstream)
        computed = {}
        for name in self._wanted:
            value = getattr(exact, _GRADIENTS[name])
            error = getattr(bounds, _GRADIENTS[name]) + getattr(further, _GRADIENTS[name])
            if name == "linear_weight" and "grad_weight_sum" in self._given:
                total = value + array_of(self._given["grad_weight_sum"]).astype(np.float64)
                computed["grad_weight_sum"] = Expected(total, error + 2.0**-24 * np.abs(total), np.float32)
                continue
            shape, dtype = self._given[name].shape, numpy_dtype(self._given[name].dtype)
            error = stored(value, error, dtype)
            computed[f"grad_{name}"] = Expected(value.reshape(shape), error.reshape(shape), dtype)
        return computed

    def _of_statistics(self, upstream: BackwardInputs) -> LinearGradients:
        """What the errors of log-sum-exp and entropy, which the kernel got from the forward, make of the gradients."""
        problem, recipe = self._problem, self._problem.recipe
        weight, lse = problem.classes_first, self._exact.lse
        of_input, of_weight = np.zeros(problem.input.shape), np.zeros(weight.shape)
        of_bias = np.zeros(len(weight))
        valid = recipe.is_valid(problem.targets)
        of_lse = np.where(valid, np.abs(upstream.grad_loss), 0.0)
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
