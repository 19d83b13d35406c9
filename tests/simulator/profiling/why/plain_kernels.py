# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels as a newcomer writes them, and the changes of their text that follow the first advice of each profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Arrays = Sequence[Any]


class Step(NamedTuple):
    """A change of a kernel's text that does what an advice asks for.

    Attributes:
        about: the kind of the advice.
        edits: pairs (old text, new text).
    """

    about: str
    edits: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class PlainKernel:
    """A kernel with the changes that follow its advice.

    Attributes:
        source: the text of its module, in which it is called ``kernel``.
        rows: for each input, whether it has all rows, or one row.
        reference: the function that computes its result in float64.
        steps: the changes, one after the other.
    """

    source: str
    rows: Sequence[bool]
    reference: Callable[..., Any]
    steps: Sequence[Step]


_HEAD = """from nkilib.nki import nisa, nki, nl


@nki.jit
"""
_BLOCKS = "range(128 * nl.program_id(0), rows, 128 * nl.num_programs(0))"
_LOOP = f"    for first in {_BLOCKS}:\n"

# The end of a kernel whose iterations are divided in ``head`` and ``tail``.
_OVERLAPPED = f"""
    blocks = list({_BLOCKS})
    for index in range(len(blocks) + 1):
        if index < len(blocks):
            head(index, blocks[index])
        if index > 0:
            tail(index - 1, blocks[index - 1])
    return result
"""


def _rms_norm(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * weight


RMS_NORM = PlainKernel(
    f"""{_HEAD}def kernel(x, weight):
    rows, columns = x.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    gain = nl.ndarray((128, columns), x.dtype)
    nisa.dma_copy(gain, weight.broadcast(0, 128))
{_LOOP}        tile = nl.ndarray((128, columns), x.dtype)
        nisa.dma_copy(tile, x[first : first + 128])
        squares = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_tensor(squares, tile, tile, nl.multiply)
        total = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(total, nl.add, squares, axis=1)
        mean = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_scalar(mean, total, nl.multiply, 1 / columns, op1=nl.add, operand1=1e-6)
        inverse = nl.ndarray((128, 1), nl.float32)
        nisa.activation(inverse, nl.rsqrt, mean)
        scaled = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_scalar(scaled, tile, nl.multiply, inverse)
        out = nl.ndarray((128, columns), x.dtype)
        nisa.tensor_tensor(out, scaled, gain, nl.multiply)
        nisa.dma_copy(result[first : first + 128], out)
    return result
""",
    (True, False),
    _rms_norm,
    (
        Step(
            "fusion",
            [
                ("        nisa.tensor_tensor(squares, tile, tile, nl.multiply)\n", ""),
                (
                    "nisa.tensor_reduce(total, nl.add, squares, axis=1)",
                    "nisa.activation_reduce(squares, nl.square, tile, reduce_op=nl.add, reduce_res=total)",
                ),
            ],
        ),
        Step(
            "fusion",
            [
                ("        nisa.tensor_scalar(scaled, tile, nl.multiply, inverse)\n", ""),
                (
                    "nisa.tensor_tensor(out, scaled, gain, nl.multiply)",
                    "nisa.scalar_tensor_tensor(out, tile, nl.multiply, inverse, nl.multiply, gain)",
                ),
            ],
        ),
        Step(
            "fusion",
            [
                ("        nisa.tensor_scalar(mean, total, nl.multiply, 1 / columns, op1=nl.add, operand1=1e-6)\n", ""),
                (
                    "nisa.activation(inverse, nl.rsqrt, mean)",
                    "nisa.activation(inverse, nl.rsqrt, total, bias=1e-06, scale=1 / columns)",
                ),
            ],
        ),
    ),
)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6) * weight + bias


_VARIANCE = "tensor_scalar(variance, variance, nl.multiply, 1 / columns, op1=nl.add, operand1=1e-6)"
_LAYER_NORM_HEAD = """        tile = nl.ndarray((128, columns), x.dtype)
        nisa.dma_copy(tile, x[first : first + 128])
        total = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(total, nl.add, tile, axis=1)
        mean = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_scalar(mean, total, nl.multiply, 1 / columns)
        centred = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_scalar(centred, tile, nl.subtract, mean)
"""

LAYER_NORM = PlainKernel(
    f"""{_HEAD}def kernel(x, weight, bias):
    rows, columns = x.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    gain = nl.ndarray((128, columns), x.dtype)
    shift = nl.ndarray((128, columns), x.dtype)
    nisa.dma_copy(gain, weight.broadcast(0, 128))
    nisa.dma_copy(shift, bias.broadcast(0, 128))
{_LOOP}{_LAYER_NORM_HEAD}        squares = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_tensor(squares, centred, centred, nl.multiply)
        variance = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(variance, nl.add, squares, axis=1)
        nisa.{_VARIANCE}
        inverse = nl.ndarray((128, 1), nl.float32)
        nisa.activation(inverse, nl.rsqrt, variance)
        scaled = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_scalar(scaled, centred, nl.multiply, inverse)
        weighted = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_tensor(weighted, scaled, gain, nl.multiply)
        out = nl.ndarray((128, columns), x.dtype)
        nisa.tensor_tensor(out, weighted, shift, nl.add)
        nisa.dma_copy(result[first : first + 128], out)
    return result
""",
    (True, False, False),
    _layer_norm,
    (
        Step(
            "fusion",
            [
                ("        nisa.tensor_tensor(squares, centred, centred, nl.multiply)\n", ""),
                (
                    "nisa.tensor_reduce(variance, nl.add, squares, axis=1)",
                    "nisa.activation_reduce(squares, nl.square, centred, reduce_op=nl.add, reduce_res=variance)",
                ),
            ],
        ),
        Step(
            "fusion",
            [
                ("        nisa.tensor_scalar(scaled, centred, nl.multiply, inverse)\n", ""),
                (
                    "nisa.tensor_tensor(weighted, scaled, gain, nl.multiply)",
                    "nisa.scalar_tensor_tensor(weighted, centred, nl.multiply, inverse, nl.multiply, gain)",
                ),
            ],
        ),
        Step(
            "engine", [("(out, weighted, shift, nl.add)", "(out, weighted, shift, nl.add, engine=nisa.engine.gpsimd)")]
        ),
        Step(
            "engine",
            [
                (
                    "nisa.tensor_reduce(total, nl.add, tile, axis=1)",
                    "scratch = nl.ndarray((128, columns), x.dtype)\n"
                    "        nisa.activation_reduce(scratch, nl.copy, tile, reduce_op=nl.add, reduce_res=total)",
                )
            ],
        ),
        Step(
            "order",
            [
                (
                    _LOOP,
                    "    centreds = [nl.ndarray((128, columns), nl.float32) for _ in range(2)]\n\n"
                    "    def head(index, first):\n",
                ),
                (
                    "        centred = nl.ndarray((128, columns), nl.float32)\n",
                    "        centred = centreds[index % 2]\n",
                ),
                (
                    "        squares = nl",
                    "\n    def tail(index, first):\n        centred = centreds[index % 2]\n        squares = nl",
                ),
                ("    return result\n", _OVERLAPPED),
            ],
        ),
        Step(
            "fusion",
            [
                (f"        nisa.{_VARIANCE}\n", ""),
                (
                    "nisa.activation(inverse, nl.rsqrt, variance)",
                    "nisa.activation(inverse, nl.rsqrt, variance, bias=1e-06, scale=1 / columns)",
                ),
            ],
        ),
    ),
)


def _softmax(x: Any) -> Any:
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


# The tiles after the first one, in the version with two fusions.
_SOFTMAX_LATER_TILES = (
    "exponentials = nl.ndarray((128, columns), nl.float32)",
    "out = nl.ndarray((128, columns), x.dtype)",
    "negative = nl.ndarray((128, 1), nl.float32)",
    "largest = nl.ndarray((128, 1), nl.float32)",
    "total = nl.ndarray((128, 1), nl.float32)",
    "inverse = nl.ndarray((128, 1), nl.float32)",
)
_SOFTMAX_TILES = """    tile = nl.ndarray((128, columns), x.dtype)
    shifted = nl.ndarray((128, columns), nl.float32)
    exponentials = nl.ndarray((128, columns), nl.float32)
    out = nl.ndarray((128, columns), x.dtype)
    largest = nl.ndarray((128, 1), nl.float32)
    total = nl.ndarray((128, 1), nl.float32)
    inverse = nl.ndarray((128, 1), nl.float32)
"""

_SOFTMAX_SEVERAL = """    slots = 2

    def several(columns, dtype):
        return [nl.ndarray((128, columns), dtype) for _ in range(slots)]

    tiles, outs, exponentialses = several(columns, x.dtype), several(columns, x.dtype), several(columns, nl.float32)
    negatives, largests = several(1, nl.float32), several(1, nl.float32)
    totals, inverses = several(1, nl.float32), several(1, nl.float32)

"""
_SOFTMAX_HEAD = """    def head(index, first):
        slot = index % slots
        tile, negative, largest = tiles[slot], negatives[slot], largests[slot]
"""
_SOFTMAX_TAIL = """
    def tail(index, first):
        slot = index % slots
        tile, negative, out = tiles[slot], negatives[slot], outs[slot]
        exponentials, total, inverse = exponentialses[slot], totals[slot], inverses[slot]
"""
_SOFTMAX_MIDDLE = """
    def middle(index):
        slot = index % slots
        tile, negative = tiles[slot], negatives[slot]
        exponentials, total, inverse = exponentialses[slot], totals[slot], inverses[slot]
"""
_SOFTMAX_END = """
    def tail(index, first):
        exponentials, inverse, out = (tiles[index % slots] for tiles in (exponentialses, inverses, outs))
        engine = nisa.engine.scalar
"""
_MIDDLE_AND_TAIL = """        if 0 < index <= len(blocks):
            middle(index - 1)
        if index > 1:
            tail(index - 2, blocks[index - 2])
"""

SOFTMAX = PlainKernel(
    f"""{_HEAD}def kernel(x):
    rows, columns = x.shape
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
{_SOFTMAX_TILES}{_LOOP}        nisa.dma_copy(tile, x[first : first + 128])
        nisa.tensor_reduce(largest, nl.maximum, tile, axis=1)
        nisa.tensor_scalar(shifted, tile, nl.subtract, largest)
        nisa.activation(exponentials, nl.exp, shifted)
        nisa.tensor_reduce(total, nl.add, exponentials, axis=1)
        nisa.reciprocal(inverse, total)
        nisa.tensor_scalar(out, exponentials, nl.multiply, inverse)
        nisa.dma_copy(result[first : first + 128], out)
    return result
""",
    (True,),
    _softmax,
    (
        Step(
            "fusion",
            [
                ("        nisa.activation(exponentials, nl.exp, shifted)\n", ""),
                (
                    "nisa.tensor_reduce(total, nl.add, exponentials, axis=1)",
                    "nisa.activation_reduce(exponentials, nl.exp, shifted, reduce_op=nl.add, reduce_res=total)",
                ),
            ],
        ),
        Step(
            "fusion",
            [
                ("    shifted = nl.ndarray((128, columns), nl.float32)\n", ""),
                ("    largest = nl", "    negative = nl.ndarray((128, 1), nl.float32)\n    largest = nl"),
                (
                    "nisa.tensor_scalar(shifted, tile, nl.subtract, largest)",
                    "nisa.tensor_scalar(negative, largest, nl.multiply, -1.0)",
                ),
                (
                    "(exponentials, nl.exp, shifted, reduce_op=nl.add, reduce_res=total)",
                    "(exponentials, nl.exp, tile, reduce_op=nl.add, reduce_res=total, bias=negative)",
                ),
            ],
        ),
        Step(
            "order",
            [
                *((f"    {line}\n", "") for line in _SOFTMAX_LATER_TILES),
                ("    tile = nl.ndarray((128, columns), x.dtype)\n", _SOFTMAX_SEVERAL),
                (_LOOP, _SOFTMAX_HEAD),
                ("        nisa.activation_reduce(exp", f"{_SOFTMAX_TAIL}        nisa.activation_reduce(exp"),
                ("    return result\n", _OVERLAPPED),
            ],
        ),
        Step(
            "engine",
            [
                (
                    "nisa.tensor_scalar(out, exponentials, nl.multiply, inverse)",
                    "engine = nisa.engine.scalar if index % 2 else nisa.engine.vector\n"
                    "        nisa.tensor_scalar(out, exponentials, nl.multiply, inverse, engine=engine)",
                )
            ],
        ),
        Step(
            "order",  # and another engine
            [
                (_SOFTMAX_TAIL, _SOFTMAX_MIDDLE),
                ("        engine = nisa.engine.scalar if index % 2 else nisa.engine.vector\n", _SOFTMAX_END),
                ("range(len(blocks) + 1)", "range(len(blocks) + 2)"),
                ("        if index > 0:\n            tail(index - 1, blocks[index - 1])\n", _MIDDLE_AND_TAIL),
            ],
        ),
        Step("buffers", [("slots = 2", "slots = 3")]),
    ),
)


def _swiglu(gate: Any, up: Any) -> Any:
    return gate / (1 + np.exp(-gate)) * up


SWIGLU = PlainKernel(
    f"""{_HEAD}def kernel(gate, up):
    rows, columns = gate.shape
    result = nl.ndarray(gate.shape, gate.dtype, nl.shared_hbm)
    for first in range(0, rows, 128):
        g = nl.ndarray((128, columns), gate.dtype)
        u = nl.ndarray((128, columns), gate.dtype)
        nisa.dma_copy(g, gate[first : first + 128])
        nisa.dma_copy(u, up[first : first + 128])
        sigmoid = nl.ndarray((128, columns), nl.float32)
        nisa.activation(sigmoid, nl.sigmoid, g)
        silu = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_tensor(silu, sigmoid, g, nl.multiply)
        product = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_tensor(product, silu, u, nl.multiply)
        out = nl.ndarray((128, columns), gate.dtype)
        nisa.tensor_copy(out, product)
        nisa.dma_copy(result[first : first + 128], out)
    return result
""",
    (True, True),
    _swiglu,
    (
        Step(
            "fusion",
            [
                ("        nisa.activation(sigmoid, nl.sigmoid, g)\n", ""),
                ("nisa.tensor_tensor(silu, sigmoid, g, nl.multiply)", "nisa.activation(silu, nl.silu, g)"),
            ],
        ),
        Step("same work", [("range(0, rows, 128)", _BLOCKS)]),
        Step(
            "engine",
            [
                (_LOOP, f"    for index, first in enumerate({_BLOCKS}):\n"),
                (
                    "nisa.tensor_tensor(product, silu, u, nl.multiply)",
                    "engine = nisa.engine.gpsimd if index % 2 else nisa.engine.vector\n"
                    "        nisa.tensor_tensor(product, silu, u, nl.multiply, engine=engine)",
                ),
            ],
        ),
        Step(
            "fusion",
            [
                ("        nisa.tensor_tensor(product, silu, u, nl.multiply, engine=engine)\n", ""),
                ("nisa.tensor_copy(out, product)", "nisa.tensor_tensor(out, silu, u, nl.multiply, engine=engine)"),
            ],
        ),
    ),
)


def _row_sum(x: Any) -> Any:
    return x.sum(axis=1, keepdims=True)


_FOUR_TOTALS = "totals = [nl.ndarray((128, 1), nl.float32) for _ in range(4)]"
_FOUR_AT_A_TIME = f"""    blocks = list(enumerate({_BLOCKS}))
    for begin in range(0, len(blocks), 4):
        group = blocks[begin : begin + 4]
"""
_EACH = "        for index, first in group:\n"
_SUM = "nisa.tensor_reduce(totals[index % 4], nl.add, tiles[index % 4],"
_SUM_ON_TWO_ENGINES = f"""            if index % 2:
                scratch = nl.ndarray((128, columns), x.dtype)
                nisa.activation_reduce(
                    scratch, nl.copy, tiles[index % 4], reduce_op=nl.add, reduce_res=totals[index % 4]
                )
            else:
                {_SUM} axis=1)
"""
_STORE = "nisa.dma_copy(result[first : first + 128], totals[index % 4])"

ROW_SUM = PlainKernel(
    f"""{_HEAD}def kernel(x):
    rows, columns = x.shape
    result = nl.ndarray((rows, 1), nl.float32, nl.shared_hbm)
    tile = nl.ndarray((128, columns), x.dtype)
    wide = nl.ndarray((128, columns), nl.float32)
    total = nl.ndarray((128, 1), nl.float32)
{_LOOP}        for begin in range(0, 128, 16):
            nisa.dma_copy(tile[begin : begin + 16], x[first + begin : first + begin + 16])
        nisa.tensor_copy(wide, tile)
        nisa.tensor_reduce(total, nl.add, wide, axis=1)
        nisa.dma_copy(result[first : first + 128], total)
    return result
""",
    (True,),
    _row_sum,
    (
        Step(
            "buffers",
            [
                (
                    "    tile = nl.ndarray((128, columns), x.dtype)\n",
                    "    tiles = [nl.ndarray((128, columns), x.dtype) for _ in range(2)]\n",
                ),
                (_LOOP, f"    for index, first in enumerate({_BLOCKS}):\n        tile = tiles[index % 2]\n"),
            ],
        ),
        Step(
            "buffers",
            [
                ("for _ in range(2)]", "for _ in range(3)]"),
                (
                    "    wide = nl.ndarray((128, columns), nl.float32)\n",
                    "    wides = [nl.ndarray((128, columns), nl.float32) for _ in range(2)]\n",
                ),
                (
                    "    total = nl.ndarray((128, 1), nl.float32)\n",
                    "    totals = [nl.ndarray((128, 1), nl.float32) for _ in range(2)]\n",
                ),
                (
                    "tile = tiles[index % 2]\n",
                    "tile, wide, total = tiles[index % 3], wides[index % 2], totals[index % 2]\n",
                ),
            ],
        ),
        Step(
            "transfers",
            [
                (
                    "        for begin in range(0, 128, 16):\n"
                    "            nisa.dma_copy(tile[begin : begin + 16], x[first + begin : first + begin + 16])\n",
                    "        nisa.dma_copy(tile, x[first : first + 128])\n",
                )
            ],
        ),
        Step(
            "fusion",
            [
                ("        nisa.tensor_copy(wide, tile)\n", ""),
                ("nisa.tensor_reduce(total, nl.add, wide, axis=1)", "nisa.tensor_reduce(total, nl.add, tile, axis=1)"),
            ],
        ),
        Step(
            "order",
            [
                ("for _ in range(3)]", "for _ in range(4)]"),
                ("totals = [nl.ndarray((128, 1), nl.float32) for _ in range(2)]", _FOUR_TOTALS),
                (f"    for index, first in enumerate({_BLOCKS}):\n", _FOUR_AT_A_TIME),
                ("        tile, wide, total = tiles[index % 3], wides[index % 2], totals[index % 2]\n", ""),
                ("        nisa.dma_copy(tile, x[", f"{_EACH}            nisa.dma_copy(tiles[index % 4], x["),
                ("        nisa.tensor_reduce(total, nl.add, tile,", f"{_EACH}            {_SUM}"),
                ("        nisa.dma_copy(result[first : first + 128], total)", f"{_EACH}            {_STORE}"),
            ],
        ),
        Step("engine", [(f"            {_SUM} axis=1)\n", _SUM_ON_TWO_ENGINES)]),
    ),
)

KERNELS = {
    "rms_norm": RMS_NORM,
    "layer_norm": LAYER_NORM,
    "softmax": SOFTMAX,
    "swiglu": SWIGLU,
    "row_sum": ROW_SUM,
}
