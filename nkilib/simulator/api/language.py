# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacement of the module ``nki.language``.

It has every public name of NKI 0.7. A function that is not implemented yet raises NotImplementedError. When this module
is imported, it binds the operators, such as ``nl.add``, to the functions that a call of the operator runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..hardware.current import TileSize
from ..isa.operators import OPERATORS
from ..language.creation import full, ndarray, ones, shared_constant, shared_identity_matrix, zeros, zeros_like
from ..language.elementwise import FUNCTIONS, logical_not, negative
from ..language.grids import alloc_blocks, alloc_tiles, blocks, empty_like, tiles
from ..language.loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    no_reorder,
    sequential_range,
    static_range,
    while_loop,
)
from ..language.matmul import matmul, transpose
from ..language.movement import broadcast_to, expand_dims, gather_flattened, load, load_transpose2d, store, where
from ..language.movement import copy as copied
from ..language.programs import device_print, num_programs, program_id, program_ndim
from ..language.random import dropout, rand, random_seed
from ..language.reductions import all_over as all
from ..language.reductions import max_over, min_over, rms_norm, softmax, sum_over, var
from ..language.reductions import mean as mean_over
from ..language.reductions import prod_over as prod
from ..language.rounding import ceil, divide, floor, fmod, mod, trunc
from ..language.trigonometry import cos, tan
from ..language.trigonometry import sin as sine
from ..tensors.device_integers import DeviceInteger
from ..tensors.grids import NkiBlockGrid, NkiGrid, NkiTileGrid
from ..tensors.indexed_views import DynamicSlice
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import (
    DType,
    bfloat16,
    bool_,
    float4_e2m1fn_x4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fn_x4,
    float8_e5m2,
    float8_e5m2_x4,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
    int16,
    int32,
    int64,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from ..terms.enums import MemoryRegion, is_hbm, is_on_chip, is_psum, is_sbuf
from ..terms.nki_object import NKIObject
from .stand_ins import alias, offer

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
hbm = private_hbm
tile_size = TileSize()

# What operators run when a kernel calls them on tiles, of which they are not aware themselves.
_CALLED = FUNCTIONS | {
    "copy": copied,
    "max": max_over,
    "mean": mean_over,
    "min": min_over,
    "sin": sine,
    "sum": sum_over,
}
for _name, _function in _CALLED.items():
    OPERATORS[_name].bind(_function)

# Operators: arguments of instructions, and functions on tiles.
abs = OPERATORS["abs"]
abs_max = OPERATORS["abs_max"]
abs_min = OPERATORS["abs_min"]
add = OPERATORS["add"]
arctan = OPERATORS["arctan"]
average = OPERATORS["average"]
bitwise_and = OPERATORS["bitwise_and"]
bitwise_or = OPERATORS["bitwise_or"]
bitwise_xor = OPERATORS["bitwise_xor"]
bypass = OPERATORS["bypass"]
copy = OPERATORS["copy"]
equal = OPERATORS["equal"]
erf = OPERATORS["erf"]
erf_dx = OPERATORS["erf_dx"]
exp = OPERATORS["exp"]
gelu = OPERATORS["gelu"]
gelu_apprx_sigmoid = OPERATORS["gelu_apprx_sigmoid"]
gelu_apprx_sigmoid_dx = OPERATORS["gelu_apprx_sigmoid_dx"]
gelu_apprx_tanh = OPERATORS["gelu_apprx_tanh"]
gelu_dx = OPERATORS["gelu_dx"]
greater = OPERATORS["greater"]
greater_equal = OPERATORS["greater_equal"]
invert = OPERATORS["invert"]
left_shift = OPERATORS["left_shift"]
less = OPERATORS["less"]
less_equal = OPERATORS["less_equal"]
log = OPERATORS["log"]
logical_and = OPERATORS["logical_and"]
logical_or = OPERATORS["logical_or"]
logical_xor = OPERATORS["logical_xor"]
max = OPERATORS["max"]
maximum = OPERATORS["maximum"]
mean = OPERATORS["mean"]
min = OPERATORS["min"]
minimum = OPERATORS["minimum"]
mish = OPERATORS["mish"]
multiply = OPERATORS["multiply"]
not_equal = OPERATORS["not_equal"]
power = OPERATORS["power"]
prelu = OPERATORS["prelu"]
reciprocal = OPERATORS["reciprocal"]
relu = OPERATORS["relu"]
right_shift = OPERATORS["right_shift"]
rsqrt = OPERATORS["rsqrt"]
sigmoid = OPERATORS["sigmoid"]
sign = OPERATORS["sign"]
silu = OPERATORS["silu"]
silu_dx = OPERATORS["silu_dx"]
sin = OPERATORS["sin"]
softplus = OPERATORS["softplus"]
sqrt = OPERATORS["sqrt"]
square = OPERATORS["square"]
subtract = OPERATORS["subtract"]
sum = OPERATORS["sum"]
tanh = OPERATORS["tanh"]


def ds(start: int | DeviceInteger, size: int) -> DynamicSlice:
    """Return the slice of ``size`` elements from element ``start``, for use in an index expression."""
    return DynamicSlice(start, size)


__all__ = [
    "DType",
    "MemoryRegion",
    "NKIObject",
    "NkiBlockGrid",
    "NkiGrid",
    "NkiTensor",
    "NkiTileGrid",
    "abs",
    "abs_max",
    "abs_min",
    "add",
    "affine_range",
    "all",
    "alloc_blocks",
    "alloc_tiles",
    "arctan",
    "average",
    "bfloat16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "blocks",
    "bool_",
    "broadcast_to",
    "bypass",
    "ceil",
    "copy",
    "cos",
    "device_print",
    "divide",
    "dropout",
    "ds",
    "dynamic_range",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "float4_e2m1fn_x4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "floor",
    "fmod",
    "fori_loop",
    "full",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "hbm",
    "int8",
    "int16",
    "int32",
    "int64",
    "invert",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "left_shift",
    "less",
    "less_equal",
    "load",
    "load_transpose2d",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "ndarray",
    "negative",
    "no_reorder",
    "not_equal",
    "num_programs",
    "ones",
    "power",
    "prelu",
    "private_hbm",
    "prod",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sbuf",
    "sequential_range",
    "shared_constant",
    "shared_hbm",
    "shared_identity_matrix",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "static_range",
    "store",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "tfloat32",
    "tile_size",
    "tiles",
    "transpose",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "var",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]

offer("nki.language", __all__, globals())

if not TYPE_CHECKING:  # a type checker would take every name for a known one

    def __getattr__(name: str) -> Any:
        """Return the object that older kernels use as ``nki.language.<name>``, or raise an error; see
        ``stand_ins.py``.
        """
        return alias("nki.language", name)
