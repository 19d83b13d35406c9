# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of the margin losses between classes, ``multi_margin_loss`` and ``multilabel_margin_loss``."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import INDEX_DTYPES, Array, Draw, array_of, laid_out, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import REDUCTIONS, dtype_of, machine, stored
from nkilib.core.host.error_bounds import UNIT
from nkilib.experimental.loss.multi_margin import host as of_one
from nkilib.experimental.loss.multi_margin.host import MultiMarginReference
from nkilib.experimental.loss.multilabel_margin import host as of_several
from nkilib.experimental.loss.multilabel_margin.host import MultilabelMarginReference

_MOST_LABELS = 40


def drawn(draw: Draw, function: str) -> Call:
    """A call of one of the two."""
    is_one = function == "multi_margin_loss"
    rows, classes = draw.sizes((1, 3_000), (1, 30_000)) if is_one else draw.sizes((1, 400), (1, 4_096))
    name, dtype = dtype_of(draw)
    is_single = draw.chance(0.1)
    rows = 1 if is_single else rows
    shape = (classes,) if is_single else (rows, classes)
    written = "input" if draw.chance(0.2) else None
    x, layout = tensor_of(draw.one_of((0.3, 1.0, 4.0)) * normal(draw, *shape), dtype), "contiguous"
    if written is None:
        x, layout = laid_out(draw, x)
    reduction, module = draw.one_of(REDUCTIONS), None
    if draw.chance(0.2):
        module = "MultiMarginLoss" if is_one else "MultiLabelMarginLoss"
    settings: dict[str, Any] = {"shape": shape, "dtype": name, "reduction": reduction, "layout": layout}
    settings |= {"inplace": written is not None, "module": module}
    settings |= {"upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    arguments: dict[str, Any] = {"input": x, "reduction": reduction}
    arguments |= {} if written is None else {"inplace": True}
    made = _one_target if is_one else _several_targets
    reference = made(draw, array_of(x).reshape(rows, classes), numpy_dtype(dtype), arguments, settings, is_single)
    return Call(
        function, arguments, ("input",), reference, settings, settings["upstream"], written=written, module=module
    )


def _one_target(
    draw: Draw, inputs: Array, dtype: np.dtype[Any], arguments: dict[str, Any], settings: dict[str, Any], single: bool
) -> Any:
    rows, classes = inputs.shape
    targets = draw.rng.integers(0, classes, (rows,))
    p, margin = draw.one_of((1, 2)), draw.one_of((1.0, 0.3, 2.5))
    weight = draw.rng.random((classes,), dtype=np.float32) + np.float32(0.25) if draw.chance(0.4) else None
    arguments["target"] = tensor_of(targets.reshape(()) if single else targets, draw.one_of(INDEX_DTYPES))
    arguments |= {"p": p, "margin": margin} | ({} if weight is None else {"weight": tensor_of(weight)})
    settings |= {"p": p, "margin": margin, "weight": weight is not None}
    reduction = arguments["reduction"]

    def reference(results: Results) -> dict[str, Expected]:
        computed = MultiMarginReference.of(inputs, targets, weight, p, margin)
        upstream = _upstream(results, reduction, rows)
        loss = _loss(computed.losses(), of_one.loss_bounds(inputs, computed, margin), reduction, dtype, single)
        if reduction != "none":
            loss = _total(computed.losses(), of_one.sum_bound(inputs, computed, margin), reduction)
        exact, error = computed.gradient(upstream), of_one.gradient_bounds(inputs, computed, margin, upstream)
        shape = (classes,) if single else inputs.shape
        return {"loss": loss, "grad_input": Expected(exact.reshape(shape), error.reshape(shape), dtype)}

    return reference


def _several_targets(
    draw: Draw, inputs: Array, dtype: np.dtype[Any], arguments: dict[str, Any], settings: dict[str, Any], single: bool
) -> Any:
    rows, classes = inputs.shape
    targets = np.full((rows, classes), -1)
    for row in targets:
        count = int(draw.rng.integers(0, min(_MOST_LABELS, classes) + 1))
        row[:count] = draw.rng.permutation(classes)[:count]
        if count + 2 < classes:  # what stands behind the end does not count
            row[count + 1] = int(draw.rng.integers(classes))
    arguments["target"] = tensor_of(targets.reshape(-1) if single else targets, draw.one_of(INDEX_DTYPES))
    settings["most_targets"] = int((targets >= 0).sum(axis=1).max())
    reduction = arguments["reduction"]

    def reference(results: Results) -> dict[str, Expected]:
        computed = MultilabelMarginReference.of(inputs, targets)
        upstream = _upstream(results, reduction, rows)
        loss = _loss(computed.losses(), of_several.loss_bounds(inputs, computed), reduction, dtype, single)
        if reduction != "none":
            loss = _total(computed.losses(), of_several.sum_bound(inputs, computed), reduction)
        exact, error = computed.gradient(upstream), of_several.gradient_bounds(inputs, computed, upstream)
        shape = (classes,) if single else inputs.shape
        return {"loss": loss, "grad_input": Expected(exact.reshape(shape), error.reshape(shape), dtype)}

    return reference


def _upstream(results: Results, reduction: str, rows: int) -> Array:
    upstream = results.upstream["loss"].astype(np.float64).reshape(-1)
    return np.broadcast_to(upstream / rows if reduction == "mean" else upstream, rows)


def _loss(losses: Array, errors: Array, reduction: str, dtype: np.dtype[Any], single: bool) -> Expected:
    shape = () if single else losses.shape
    return Expected(losses.reshape(shape), stored(losses, errors, dtype).reshape(shape), dtype)


def _total(losses: Array, error: float, reduction: str) -> Expected:
    factor = 1.0 / len(losses) if reduction == "mean" else 1.0
    total = factor * losses.sum()
    return Expected(np.array(total), np.array(factor * error + UNIT * abs(total)), np.float32)
