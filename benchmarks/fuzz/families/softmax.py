# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of ``softmax`` and ``log_softmax``: any dimension of tensors of any rank, also long middle ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fuzz.call import UPSTREAMS, Call, Expected, Results
from benchmarks.fuzz.draw import DTYPES, Array, Draw, array_of, laid_out, normal, numpy_dtype, tensor_of
from benchmarks.fuzz.families.common import dtype_of, machine
from nkilib.experimental.softmax import host

_FORWARD = {
    "softmax": (host.softmax_reference, host.softmax_bound),
    "log_softmax": (host.log_softmax_reference, host.log_softmax_bound),
}
_BACKWARD = {
    "softmax": (host.softmax_backward_reference, host.softmax_backward_bound),
    "log_softmax": (host.log_softmax_backward_reference, host.log_softmax_backward_bound),
}
_MODULES = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def drawn(draw: Draw, function: str) -> Call:
    """A call of one of the two."""
    shape, axis = _shape(draw)
    is_inner = len(shape) == 3 and axis == 1
    name, dtype = ("fp32", DTYPES["fp32"]) if is_inner and draw.chance(0.4) else dtype_of(draw)
    kind = draw.one_of(("normal", "spread", "masked", "constant"))
    x, layout = laid_out(draw, tensor_of(_values(draw, kind, shape, axis), dtype))
    arguments: dict[str, Any] = {"input": x, "dim": axis - len(shape) if draw.chance(0.3) else axis}
    result, module = dtype, None
    if draw.chance(0.2):
        result = arguments["dtype"] = DTYPES[draw.one_of(tuple(DTYPES))]
    elif draw.chance(0.2):
        module = _MODULES[function]
        arguments = {"dim": arguments["dim"], "input": x}
        if function == "softmax" and len(shape) in (3, 4) and axis == len(shape) - 3:
            module, arguments = "Softmax2d", {"input": x}
    settings: dict[str, Any] = {
        "shape": shape,
        "dim": axis,
        "dtype": name,
        "values": kind,
        "layout": layout,
        "module": module,
    }
    settings |= {"result": str(result), "upstream": draw.one_of(UPSTREAMS[1:]), **machine(draw)}
    exact, off = _FORWARD[function]
    exact_gradient, off_gradient = _BACKWARD[function]
    inputs, of_result, of_gradient = array_of(x), numpy_dtype(result), numpy_dtype(dtype)

    def expected(results: Results) -> dict[str, Expected]:
        y, dy = results.values["loss"], results.upstream["loss"]
        return {
            "loss": Expected(exact(inputs, axis), off(inputs, axis, of_result), of_result),
            "grad_input": Expected(exact_gradient(dy, y, axis), off_gradient(dy, y, axis, of_gradient), of_gradient),
        }

    return Call(function, arguments, ("input",), expected, settings, settings["upstream"], module=module)


def _shape(draw: Draw) -> tuple[tuple[int, ...], int]:
    """A shape of one to four dimensions, and a dimension that is long; many with a long dimension inside of it."""
    if draw.chance(0.4):
        # As many bytes as a core's memory has, more or less: there plans change.
        ranges = draw.one_of((((1, 3), (1_000, 30_000), (64, 4_000)), ((1, 1), (6_000, 20_000), (128, 1_300))))
        if draw.limits.name == "small":
            ranges = ((1, 3), (20, 700), (10, 300))
        return draw.sizes(
            *ranges, most=draw.limits.logits if draw.limits.name != "small" else draw.limits.elements, span=4
        ), 1
    rank = draw.one_of((1, 2, 2, 3, 3, 3, 4))
    axis = int(draw.rng.integers(rank))
    most = draw.limits.logits if draw.chance(0.3) else draw.limits.elements
    sizes = draw.sizes(*((1, 60_000) if at == axis else (1, 2_000) for at in range(rank)), most=most)
    return sizes, axis


def _values(draw: Draw, kind: str, shape: tuple[int, ...], axis: int) -> Array:
    values = normal(draw, *shape) * np.float32({"spread": 30.0}.get(kind, 1.5))
    if kind == "constant":
        values[...] = values.reshape(-1)[0]
    if kind == "masked" and shape[axis] > 1:
        is_kept = draw.rng.random(shape) < 0.6
        np.moveaxis(is_kept, axis, 0)[int(draw.rng.integers(shape[axis]))] = True  # one of each row is finite
        values = np.where(is_kept, values, np.float32(-np.inf))
    return values
