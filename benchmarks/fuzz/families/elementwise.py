# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Elementwise losses of tensors of any shape, some of which broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
import torch

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import Draw
from benchmarks.fuzz.families.common import REDUCTIONS, dtype_of, machine, stored, sum_error
from benchmarks.fuzz.families.element_forms import ROWS, Form, Shape, drawn_form
from benchmarks.fuzz.values import Array, array_of, laid_out, numpy_dtype, tensor_of
from nkilib.core.host.exact import Exact
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.experimental.loss.skeletons.elementwise.host import reference as derived
from nkilib.experimental.loss.skeletons.elementwise.tiling import RUN_COLUMNS

MODULES: Final = {name: loss.module for name, loss in ROWS.items()}
# Of modules that have no weight.
_NO_WEIGHT: Final = ("MSELoss", "L1Loss", "HuberLoss")
# Columns of a tile that a launch may choose.
_COLUMNS: Final = (RUN_COLUMNS, 8192)


def drawn(draw: Draw, function: str) -> Call:
    """A call of one of them."""
    shape = _shape(draw)
    form = drawn_form(draw, function, shape)
    names = list(form.tensors)
    written = names[0] if draw.chance(0.2) else None
    name, first = dtype_of(draw)
    dtypes = {name: first if form.one_type or draw.chance(0.7) else dtype_of(draw)[1] for name in names}
    is_cast = _loss_dtype(form, dtypes) != first and function == "kl_div"
    written = None if is_cast else written
    _broadcast(draw, form, shape, written)
    tensors, layouts = {}, {}
    for key, values in form.tensors.items():
        tensor = tensor_of(values, dtypes[key])
        is_kept = key == written
        tensors[key], layouts[key] = (tensor, "contiguous") if is_kept else laid_out(draw, tensor)
    reduction = draw.one_of((*REDUCTIONS, "batchmean") if function == "kl_div" else REDUCTIONS)
    arguments = {**tensors, **form.options, "reduction": reduction}
    arguments |= {} if written is None else {"inplace": True}
    module = MODULES[function] if draw.chance(0.2) else None
    if "weight" in names and module in _NO_WEIGHT:
        module = None
    settings: dict[str, Any] = {
        "shape": shape,
        "dtype": name,
        "reduction": reduction,
        **form.options,
        "layouts": layouts,
    }
    settings |= {"shapes": {name: tuple(tensor.shape) for name, tensor in tensors.items()}}
    settings |= {"dtypes": {name: str(dtype) for name, dtype in dtypes.items()}, "module": module}
    settings |= {"inplace": written is not None, "upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    reference = _Reference(form, {name: array_of(tensor) for name, tensor in tensors.items()}, reduction, dtypes)
    return Call(
        function,
        arguments,
        form.differentiated,
        reference,
        settings,
        settings["upstream"],
        written=written,
        module=module,
    )


def _shape(draw: Draw) -> Shape:
    """One to three dimensions."""
    rank = draw.one_of((1, 2, 2, 3))
    most = draw.limits.elements // 2
    if rank == 1:
        return draw.sizes((1, most), most=most)
    return draw.sizes(*(((1, 4_000), (1, 60_000)) if rank == 2 else ((1, 300), (1, 2_000), (1, 8_000))), most=most)


def _broadcast(draw: Draw, form: Form, shape: Shape, written: str | None) -> None:
    """Let one of the tensors have one element along a dimension."""
    names = [name for name in form.may_broadcast if name != written and form.tensors[name].shape == shape]
    if names and draw.chance(0.2):
        name, axis = draw.one_of(names), int(draw.rng.integers(len(shape)))
        form.tensors[name] = np.take(form.tensors[name], [0], axis)


def _loss_dtype(form: Form, dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    typed = [dtype for name, dtype in dtypes.items() if name in (form.typed or tuple(dtypes))]
    return reduce(torch.promote_types, typed)


class _Reference:
    """Loss and gradients, from the reference of the form."""

    def __init__(
        self, form: Form, tensors: dict[str, Array], reduction: str, dtypes: Mapping[str, torch.dtype]
    ) -> None:
        self._form, self._reduction, self._given = form, reduction, tensors
        self._dtype = numpy_dtype(_loss_dtype(form, dtypes))
        shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors.values()))
        self._tensors = {name: np.broadcast_to(tensor, shape) for name, tensor in tensors.items()}

    def __call__(self, results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            weight = self._tensors.get("weight")
            is_weighted = self._form.divides_by_weight and self._reduction == "mean" and weight is not None
            divisor, relative = self._divisor(is_weighted)
            computed = {"loss": self._loss(divisor, relative)}
            upstream = results.upstream["loss"].astype(np.float64) / divisor
            exact = derived.gradients(self._form.reference, self._tensors, upstream, "sum")
            for name in self._form.differentiated:
                value, error = exact[name]
                error = error + (relative + 2.0 * UNIT) * np.abs(value)
                if is_weighted and name == "weight":
                    value, error = self._of_weights(Exact(value, error), upstream, computed["loss"])
                computed[f"grad_{name}"] = self._gradient(name, value, error)
        return computed

    def _divisor(self, is_weighted: bool) -> tuple[float, float]:
        """Return the divisor of the sum of the losses, and its relative error."""
        if is_weighted:
            weights = self._tensors["weight"].astype(np.float64)
            share = sum_error(weights.size) * np.abs(weights).sum() / abs(weights.sum())
            return float(weights.sum()), float(share)
        first = next(iter(self._given.values()))
        batch = float(first.shape[0]) if first.ndim else 1.0
        sizes = {"mean": float(next(iter(self._tensors.values())).size), "batchmean": batch}
        return sizes.get(self._reduction, 1.0), 0.0

    def _loss(self, divisor: float, relative: float) -> Expected:
        if self._reduction == "none":
            exact = derived.losses(self._form.reference, self._tensors, self._dtype)
            return Expected(exact.value, exact.error, self._dtype)
        sums = [derived.reduced(self._form.reference, self._tensors, "sum", columns) for columns in _COLUMNS]
        total, error = sums[0].value[0] / divisor, max(item.error[0] for item in sums) / abs(divisor)
        return Expected(np.array(total), np.array(error + (relative + UNIT) * abs(total)), np.float32)

    def _of_weights(self, product: Exact, upstream: Array, mean: Expected) -> Exact:
        """Return the derivative of sum(w l) / sum(w): minus the mean, and autograd adds up two rounded gradients."""
        dtype = self._given["weight"].dtype
        common = upstream * mean.value
        error = product.error + np.abs(upstream) * mean.error + 4.0 * UNIT * np.abs(common)
        error += rounding(np.full(product.value.shape, common), dtype)
        value = product.value - common
        return Exact(value, error + rounding(np.abs(value) + error, dtype))

    def _gradient(self, name: str, value: Array, error: Array) -> Expected:
        """Return the gradient of a tensor that may broadcast: PyTorch's sum of rounded numbers is rounded again."""
        inputs = self._given[name]
        if inputs.shape != value.shape:
            added = value.ndim - inputs.ndim
            axes = tuple(range(added)) + tuple(
                added + axis for axis, size in enumerate(inputs.shape) if size == 1 and value.shape[added + axis] != 1
            )
            numbers = value.size // max(inputs.size, 1)
            cost = sum_error(numbers) * (np.abs(value) + error).sum(axis=axes, keepdims=True)
            error = error.sum(axis=axes, keepdims=True) + cost
            value = value.sum(axis=axes, keepdims=True).reshape(inputs.shape)
            error = stored(value, error.reshape(inputs.shape), inputs.dtype) + SMALLEST_NORMAL
        return Expected(value, error, inputs.dtype)
