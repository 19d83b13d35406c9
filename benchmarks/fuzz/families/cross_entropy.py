# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of losses of logits: ``cross_entropy``, ``vocab_parallel_cross_entropy`` of a single rank, and
``token_scores``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import INDEX_DTYPES, Array, Draw, array_of, laid_out, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import (
    REDUCTIONS,
    Recipe,
    confident,
    divisor_of,
    drawn_targets,
    dtype_of,
    machine,
    masked,
    reduced,
    stored,
    with_upstream,
)
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.cross_entropy.bounds import extended_forward_bounds, extended_gradient_bound
from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)

_SCORES = "token_scores"
_PARALLEL = "vocab_parallel_cross_entropy"


def drawn(draw: Draw, function: str) -> Call:
    """A call of one of the three."""
    positions, vocabulary = draw.sizes((1, 2_000), (1, 200_000))
    name, dtype = dtype_of(draw)
    is_soft = function != _SCORES and draw.chance(0.15)
    targets, ignored = drawn_targets(draw, positions, vocabulary)
    recipe = _recipe(draw, function, positions, vocabulary, -100 if is_soft else ignored, is_soft)
    values, kind = _logits(draw, positions, vocabulary, targets, recipe, is_soft)
    if is_soft:
        targets = _probabilities(draw, positions, vocabulary)
    written = "input" if draw.chance(0.25) else None
    layout = _Layout.drawn(draw, positions, function == _SCORES or written is not None)
    x, lies = tensor_of(layout.laid(values), dtype), "contiguous"
    if written is None:
        x, lies = laid_out(draw, x)
    target = tensor_of(layout.laid(targets)) if is_soft else tensor_of(targets.reshape(layout.positions))
    names = ("logits",) if function == _SCORES else ("logits_shard",) if function == _PARALLEL else ("input",)
    arguments: dict[str, Any] = {names[0]: x, "target": target if is_soft else target.to(draw.one_of(INDEX_DTYPES))}
    arguments |= recipe.given | ({"class_dim": layout.class_dim} if function != _SCORES else {})
    arguments |= {} if written is None else {"inplace": True}
    module = "CrossEntropyLoss" if function == "cross_entropy" and draw.chance(0.2) else None
    by_target = is_soft and _is_known_to_pytorch(recipe) and draw.chance(0.5) and written is None
    settings: dict[str, Any] = {
        "N": positions,
        "V": vocabulary,
        "dtype": name,
        "values": kind,
        "layout": layout.name,
        "lies": lies,
    }
    settings |= {"class_dim": layout.class_dim, "soft": is_soft, **recipe.settings, "module": module}
    settings |= {"inplace": written is not None, "upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    results = _results_with_upstream(draw, function, recipe, is_soft)
    expected = _Reference(
        layout.rows(array_of(x)), targets, recipe, layout, names[0], numpy_dtype(dtype), function, by_target
    )
    differentiated = (names[0], *(("target",) if by_target else ()))
    return Call(
        function,
        arguments,
        differentiated,
        expected,
        settings,
        settings["upstream"],
        results=results,
        written=None if written is None else names[0],
        module=module,
    )


@dataclass(frozen=True)
class _Layout:
    """The layout of positions and classes.

    Attributes:
        name: the layout in words.
        positions: shape of the positions.
        class_dim: 1 or -1.
    """

    name: str
    positions: tuple[int, ...]
    class_dim: int

    @classmethod
    def drawn(cls, draw: Draw, positions: int, has_classes_last: bool) -> _Layout:
        """Draw a layout with this number of positions."""
        batch = draw.one_of([size for size in (1, 2, 3, 4) if positions % size == 0])
        class_dim = -1 if has_classes_last else draw.one_of((1, -1))
        kinds = ["[N, V]", "[N, V]", "[B, S, V]"] + ["[V]"] * (positions == 1)
        kind = draw.one_of(kinds)
        shapes: dict[str, tuple[int, ...]] = {"[N, V]": (positions,), "[V]": ()}
        return cls(kind, shapes.get(kind, (batch, positions // batch)), class_dim)

    @property
    def _axis(self) -> int:
        return min(1, len(self.positions)) if self.class_dim == 1 else len(self.positions)

    def laid(self, rows: Array) -> Array:
        """Convert [N, V] to this layout."""
        return np.ascontiguousarray(np.moveaxis(rows.reshape(*self.positions, rows.shape[1]), -1, self._axis))

    def rows(self, laid: Array) -> Array:
        """Convert this layout back to [N, V]."""
        moved = np.moveaxis(laid, self._axis, -1)
        return np.ascontiguousarray(moved.reshape(-1, moved.shape[-1]))


def _recipe(draw: Draw, function: str, positions: int, vocabulary: int, ignored: int, is_soft: bool) -> Recipe:
    arguments: dict[str, Any] = {}
    if ignored != -100:
        arguments["ignore_index"] = ignored
    if draw.chance(0.25):
        arguments["logit_softcap"] = draw.one_of((30.0, 5.0))
    if draw.chance(0.25):
        arguments["temperature"] = draw.one_of((0.7, 2.0))
    arguments["exact_maximum"] = draw.one_of((None, None, True))
    # The forms of the loss that have a kernel without the maximum.
    may_be_shifted = not is_soft and "logit_softcap" not in arguments and min(positions, vocabulary) > 1
    if function == _SCORES:
        arguments["entropy"] = draw.chance(0.7)
        if may_be_shifted and draw.chance(0.3):
            arguments["exact_maximum"] = False
        loss = ExtendedLoss(None, ignored, 0.0, arguments.get("logit_softcap"), 0.0, arguments.get("temperature", 1.0))
        return Recipe(loss, "none", given=arguments)
    arguments["reduction"] = draw.one_of(REDUCTIONS)
    weight = draw.rng.random(vocabulary, dtype=np.float32) + np.float32(0.25) if draw.chance(0.3) else None
    if weight is not None:
        arguments["weight"] = tensor_of(weight)
    if draw.chance(0.3):
        arguments["label_smoothing"] = draw.one_of((0.1, 0.01, 1.0))
    if draw.chance(0.3):
        arguments["lse_square_scale"] = draw.one_of((1e-4, 0.1))
    normalizer = None
    if arguments["reduction"] == "mean" and draw.chance(0.2):
        normalizer = 37.0
        arguments["normalizer"] = tensor_of(np.array(normalizer))
    arguments["return_outputs"] = draw.chance(0.3)
    is_plain = "label_smoothing" not in arguments and not arguments["return_outputs"]
    if function != _PARALLEL and may_be_shifted and is_plain and draw.chance(0.4):
        arguments["exact_maximum"] = False
    smoothing, square = arguments.get("label_smoothing", 0.0), arguments.get("lse_square_scale", 0.0)
    cap, temperature = arguments.get("logit_softcap"), arguments.get("temperature", 1.0)
    loss = ExtendedLoss(weight, ignored, smoothing, cap, square, temperature)
    return Recipe(loss, arguments["reduction"], normalizer, arguments["return_outputs"], arguments)


def _is_known_to_pytorch(recipe: Recipe) -> bool:
    """Tell whether PyTorch has the loss, so that probabilities may require grad."""
    return not {"logit_softcap", "temperature", "lse_square_scale"} & set(recipe.given)


def _logits(
    draw: Draw, positions: int, vocabulary: int, targets: Array, recipe: Recipe, is_soft: bool
) -> tuple[Array, str]:
    kinds = ["normal", "spread", "large"]
    if not is_soft and recipe.loss.logit_softcap is None:
        kinds += ["confident", "confident"]
    if not is_soft and recipe.loss.label_smoothing == 0.0:
        kinds.append("masked")
    kind = draw.one_of(kinds)
    values = normal(draw, positions, vocabulary)
    if kind == "masked":
        return masked(draw, values, targets), kind
    if kind == "confident":
        return confident(values, targets).astype(np.float32), kind
    if kind == "large":  # all of a row far from 0
        return values + np.float32(80.0) * normal(draw, positions, 1), kind
    return values * np.float32(3.0 if kind == "normal" else 30.0), kind


def _probabilities(draw: Draw, positions: int, vocabulary: int) -> Array:
    values = np.exp(2.0 * normal(draw, positions, vocabulary).astype(np.float64))
    return (values / values.sum(axis=1, keepdims=True)).astype(np.float32)


def _results_with_upstream(draw: Draw, function: str, recipe: Recipe, is_soft: bool) -> tuple[str, ...]:
    if function == _SCORES:
        return ("logprob", "entropy") if recipe.given["entropy"] else ("logprob",)
    return with_upstream(draw, recipe, without=("logprob",) if is_soft else ())


class _Reference:
    """All results of a call."""

    def __init__(
        self,
        logits: Array,
        targets: Array,
        recipe: Recipe,
        layout: _Layout,
        name: str,
        dtype: np.dtype[Any],
        function: str,
        by_target: bool,
    ) -> None:
        self._logits, self._targets, self._recipe, self._layout = logits, targets, recipe, layout
        self._name, self._dtype, self._function, self._by_target = name, dtype, function, by_target

    def __call__(self, results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            options, recipe, shape = self._recipe.loss, self._recipe, self._layout.positions
            self._exact = extended_forward_reference(self._logits, self._targets, self._dtype, options)
            self._bounds = extended_forward_bounds(self._logits, self._targets, self._dtype, options)
            self._valid = options.is_valid(self._targets)
            is_soft = self._targets.ndim == 2
            weights = np.ones(len(self._logits)) if is_soft else self._exact.position_weight
            off = np.zeros(len(weights)) if is_soft else self._bounds["position_weight"]
            self._divisor, self._of_divisor = divisor_of(recipe, weights, off)
            loss_error = np.where(self._valid, self._bounds["loss"], 0.0) + SMALLEST_NORMAL
            loss = reduced(self._exact.loss, loss_error, recipe, self._divisor, self._of_divisor, shape)
            computed = self._scores() if self._function == _SCORES else {"loss": loss}
            if recipe.return_outputs:
                computed |= self._outputs(is_soft)
            computed[f"grad_{self._name}"] = self._gradient(results)
            if self._by_target and "loss" in results.upstream:  # no other result depends on the target
                computed["grad_target"] = self._gradient_of_target(results)
        return computed

    def _logprob(self) -> tuple[Array, Array]:
        """Return the log-probability of positions: the loss without weights, smoothing and square, negated."""
        plain = replace(self._recipe.loss, class_weight=None, label_smoothing=0.0, lse_square_scale=0.0)
        value = -extended_forward_reference(self._logits, self._targets, self._dtype, plain).loss
        error = extended_forward_bounds(self._logits, self._targets, self._dtype, plain)["loss"]
        return value, np.where(self._valid, error, 0.0) + SMALLEST_NORMAL

    def _scores(self) -> dict[str, Expected]:
        named = {"logprob": self._logprob()}
        if self._recipe.given["entropy"]:
            named["entropy"] = (self._exact.entropy, self._bounds["entropy"])
        return {name: self._of_positions(*value) for name, value in named.items()}

    def _of_positions(self, value: Array, error: Array) -> Expected:
        shape = self._layout.positions
        return Expected(value.reshape(shape), error.reshape(shape), np.float32)

    def _outputs(self, is_soft: bool) -> dict[str, Expected]:
        lse, scale = self._exact.lse, self._recipe.loss.lse_square_scale
        square = np.where(self._valid, scale * np.square(lse), 0.0)
        off = scale * (2.0 * np.abs(lse) + self._bounds["lse"]) * self._bounds["lse"] + 2.0 * UNIT * square
        computed = {
            "lse": self._of_positions(lse, self._bounds["lse"]),
            "entropy": self._of_positions(self._exact.entropy, self._bounds["entropy"]),
            "z_loss": reduced(
                square,
                np.where(self._valid, off, 0.0) + SMALLEST_NORMAL,
                self._recipe,
                self._divisor,
                self._of_divisor,
                self._layout.positions,
            ),
            "argmax": Expected(
                self._exact.argmax.reshape(self._layout.positions),
                np.zeros(self._layout.positions),
                np.int64,
            ),
        }
        if not is_soft:
            computed["logprob"] = self._of_positions(*self._logprob())
        return computed

    def _of_loss(self, results: Results, name: str) -> Array:
        """The upstream gradient of each position's part of a reduced result."""
        if name not in results.upstream:
            return np.zeros(len(self._logits))
        upstream = results.upstream[name].astype(np.float64).reshape(-1)
        divisor = self._divisor if self._recipe.reduction == "mean" else 1.0
        return np.broadcast_to(upstream / divisor, len(self._logits)).copy()

    def _of_position(self, results: Results, name: str) -> Array | None:
        upstream = results.upstream.get(name)
        return None if upstream is None else upstream.astype(np.float64).reshape(-1)

    def _backward_inputs(self, results: Results) -> tuple[BackwardInputs, Array]:
        """Return the inputs of the backward in float64, and the part of the gradient of lse that comes from z_loss."""
        lse, scale = self._exact.lse, self._recipe.loss.lse_square_scale
        of_square = np.where(self._valid, self._of_loss(results, "z_loss") * 2.0 * scale * lse, 0.0)
        of_lse, of_logprob = self._of_position(results, "lse"), self._of_position(results, "logprob")
        of_loss = self._of_loss(results, "loss")
        if self._function == _SCORES:  # which is the loss, negated
            of_loss, of_logprob = -(np.zeros(len(lse)) if of_logprob is None else of_logprob), None
        total = of_square if of_lse is None else of_square + of_lse
        of_entropy = self._of_position(results, "entropy")
        known = None if of_entropy is None else self._exact.entropy
        return BackwardInputs(lse, of_loss, total, of_logprob, known, of_entropy), of_square

    def _gradient(self, results: Results) -> Expected:
        options, operands = self._recipe.loss, self._backward_inputs(results)
        inputs, of_square = operands
        arguments = (self._logits, self._targets, self._dtype, options)
        exact = extended_backward_reference(*arguments, inputs)
        error = extended_gradient_bound(*arguments, inputs) + self._of_statistics(inputs, of_square)
        # The upstream gradient of a position is a quotient of float32 numbers.
        plain = replace(inputs, grad_lse=None, grad_logprob=None, entropy=None, grad_entropy=None)
        relative = self._of_divisor + 2.0 * UNIT
        error += relative * np.abs(extended_backward_reference(*arguments, plain))
        shape = self._layout
        error = stored(exact, error, self._dtype)
        return Expected(shape.laid(exact), shape.laid(error), self._dtype)

    def _of_statistics(self, inputs: BackwardInputs, of_square: Array) -> Array:
        """Return the error of the gradient due to the errors of lse and entropy from the forward."""
        options = self._recipe.loss
        z = options.scores(self._logits, self._dtype)
        log_p = z - self._exact.lse[:, np.newaxis]
        p, off = np.exp(log_p), np.expm1(self._bounds["lse"])
        factors = options.factors(self._targets, z.shape[1]).sum(axis=1)
        sizes = np.abs(inputs.grad_loss) * (factors + 2.0 * options.lse_square_scale * np.abs(self._exact.lse))
        square = np.abs(inputs.grad_loss) * 2.0 * options.lse_square_scale * self._bounds["lse"]
        square += np.abs(of_square) * (self._bounds["lse"] / np.maximum(np.abs(self._exact.lse), SMALLEST_NORMAL))
        square += np.abs(of_square) * (self._of_divisor + 4.0 * UNIT)
        sizes = np.where(self._valid, sizes, 0.0)
        for array in (inputs.grad_lse, inputs.grad_logprob):
            sizes = sizes if array is None else sizes + np.abs(array)
        error = (sizes * off + square)[:, np.newaxis] * p
        if inputs.grad_entropy is not None:
            terms = np.where(p == 0.0, 0.0, p * np.abs(log_p + self._exact.entropy[:, np.newaxis]))
            both = self._bounds["lse"] + self._bounds["entropy"]
            error += np.abs(inputs.grad_entropy)[:, np.newaxis] * (terms * off[:, np.newaxis] + p * both[:, np.newaxis])
        return error / options.temperature

    def _gradient_of_target(self, results: Results) -> Expected:
        """Return the gradient of PyTorch's operators: (1 - e) w (lse - z), in float32."""
        options, vocabulary = self._recipe.loss, self._logits.shape[1]
        z = options.scores(self._logits, self._dtype)
        upstream = self._of_loss(results, "loss")[:, np.newaxis]
        scale = (1.0 - options.label_smoothing) * options.weights(vocabulary) * np.abs(upstream)
        distance = self._exact.lse[:, np.newaxis] - z
        maximum = z.max(axis=1, keepdims=True)
        below = maximum - z
        of_log_sum = 16.0 * UNIT * np.maximum(1.0, self._exact.lse[:, np.newaxis] - maximum)
        error = scale * (of_log_sum + UNIT * below + (self._of_divisor + 4.0 * UNIT) * np.abs(distance))
        exact = scale * np.sign(upstream) * distance
        return Expected(self._layout.laid(exact), self._layout.laid(error + SMALLEST_NORMAL), np.float32)
