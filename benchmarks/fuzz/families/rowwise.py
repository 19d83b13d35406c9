# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of the row-wise losses: ``triplet_margin_loss``, ``cosine_embedding_loss`` and
``multilabel_soft_margin_loss``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from math import inf
from typing import Any, Final

import numpy as np
import torch

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import Array, Draw, array_of, laid_out, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import REDUCTIONS, dtype_of, machine
from nkilib.core.host.error_bounds import UNIT
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.loss.rowwise.cosine_embedding import CosineReference
from nkilib.experimental.loss.rowwise.multilabel_soft_margin import MultilabelSoftMarginReference
from nkilib.experimental.loss.rowwise.triplet_margin_host import TripletReference
from nkilib.experimental.loss.skeletons.rowwise import host as derived
from nkilib.experimental.loss.skeletons.rowwise.host import RowwiseLoss, RowwiseReference

MODULES: Final = {loss.name: loss.module for loss in LOSSES if isinstance(loss, RowwiseLoss)}


@dataclass
class _Form:
    """Tensors by name, [N, D] or [N], and the reference of a loss with options."""

    tensors: dict[str, Array]
    reference: RowwiseReference
    options: dict[str, Any] = field(default_factory=dict)
    differentiated: tuple[str, ...] = ()


def drawn(draw: Draw, function: str) -> Call:
    """A call of one of the three."""
    most = draw.limits.elements // 3
    rows, columns = draw.sizes((1, 5_000), (1, 60_000), most=most)
    form = _FORMS[function](draw, rows, columns)
    name, first = dtype_of(draw)
    written = next(iter(form.tensors)) if draw.chance(0.2) else None
    tensors, layouts, dtypes = {}, {}, {}
    for key, values in form.tensors.items():
        is_vector = values.ndim == 1
        dtypes[key] = torch.float32 if is_vector else first if draw.chance(0.8) else dtype_of(draw)[1]
        tensor = tensor_of(values, dtypes[key])
        tensors[key], layouts[key] = (tensor, "contiguous") if key == written else laid_out(draw, tensor)
    if "weight" in tensors:  # [C] for PyTorch
        tensors["weight"] = tensors["weight"].reshape(-1)
    reduction, module = draw.one_of(REDUCTIONS), MODULES[function] if draw.chance(0.2) else None
    differentiated = form.differentiated
    if module == "MultiLabelSoftMarginLoss":  # whose weight is a buffer
        differentiated = tuple(item for item in differentiated if item != "weight")
    arguments = {**tensors, **form.options, "reduction": reduction} | ({} if written is None else {"inplace": True})
    settings: dict[str, Any] = {
        "shape": (rows, columns),
        "dtype": name,
        "reduction": reduction,
        **form.options,
        "layouts": layouts,
    }
    settings |= {"dtypes": {name: str(dtype) for name, dtype in dtypes.items()}, "module": module}
    settings |= {"inplace": written is not None, "upstream": draw.one_of(UPSTREAMS), **machine(draw)}
    inputs = {name: array_of(tensor) for name, tensor in tensors.items()}
    inputs |= {"weight": inputs["weight"].reshape(1, -1)} if "weight" in inputs else {}
    matrices = [dtypes[tensor] for tensor in tensors if form.tensors[tensor].ndim == 2]
    of_loss = numpy_dtype(reduce(torch.promote_types, matrices)) if reduction == "none" else np.dtype(np.float32)

    def reference(results: Results) -> dict[str, Expected]:
        with np.errstate(all="ignore"):
            if reduction == "none":
                loss = derived.losses(form.reference, inputs, of_loss)
                computed = {"loss": Expected(loss.value, loss.error, of_loss)}
            else:
                loss = derived.reduced(form.reference, inputs, reduction)
                computed = {"loss": Expected(loss.value.reshape(()), loss.error.reshape(()), of_loss)}
            upstream = results.upstream["loss"].astype(np.float64).reshape(-1)
            exact = derived.gradients(form.reference, inputs, upstream, reduction)
            for item in differentiated:
                value, error = exact[item]
                shape = tuple(tensors[item].shape)
                further = error + 2.0 * UNIT * np.abs(value)
                computed[f"grad_{item}"] = Expected(value.reshape(shape), further.reshape(shape), inputs[item].dtype)
        return computed

    return Call(
        function, arguments, differentiated, reference, settings, settings["upstream"], written=written, module=module
    )


def _triplet(draw: Draw, rows: int, columns: int) -> _Form:
    p = draw.one_of((2.0, 2.0, 1.0, inf, 3.0, 1.5))
    options: dict[str, Any] = {"margin": draw.one_of((1.0, 4.0)), "p": p, "eps": 1e-6, "swap": draw.chance(0.4)}
    names = ("anchor", "positive", "negative")
    tensors: dict[str, Array] = {name: normal(draw, rows, columns) for name in names}
    return _Form(tensors, TripletReference(**options), options, names)


def _cosine(draw: Draw, rows: int, columns: int) -> _Form:
    margin, first = draw.one_of((0.0, 0.3)), normal(draw, rows, columns)
    second = draw.one_of((0.0, 1.0)) * first + normal(draw, rows, columns)
    target = np.where(draw.rng.random(rows) < 0.5, np.float32(-1.0), np.float32(1.0))
    tensors = {"input1": first, "input2": second, "target": target}
    return _Form(tensors, CosineReference(margin), {"margin": margin}, ("input1", "input2"))


def _multilabel(draw: Draw, rows: int, columns: int) -> _Form:
    labels = np.clip(0.5 + normal(draw, rows, columns), 0.0, 1.0)
    tensors = {"input": np.float32(draw.one_of((1.0, 6.0))) * normal(draw, rows, columns), "target": labels}
    names: tuple[str, ...] = ("input", "target")
    if draw.chance(0.4):
        tensors["weight"] = np.abs(normal(draw, 1, columns)) + np.float32(0.125)
        names = (*names, "weight")
    return _Form(tensors, MultilabelSoftMarginReference("weight" in tensors), {}, names)


_FORMS: Final = {
    "triplet_margin_loss": _triplet,
    "cosine_embedding_loss": _cosine,
    "multilabel_soft_margin_loss": _multilabel,
}
