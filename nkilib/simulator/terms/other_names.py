# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Names that older releases of NKI, numpy, PyTorch, JAX or Triton have, each with what to use in NKI 0.7.

- :data:`OTHER_NAMES`: names of other libraries, grouped by the module of NKI in which a kernel looks for them;
- :data:`REMOVED`, :data:`FIRST_NKI`: names and modules of older releases of NKI;
- :data:`NUMPY_NAMES`: functions of numpy that a kernel calls with a tensor.

A suggestion by similar spelling would mislead: ``sub`` looks like ``sum``, ``mul`` like ``matmul``, and ``static_cast``
like ``static_range``. To add a name, add a line to the table of its module.
"""

from __future__ import annotations

from typing import Final


def _elementwise(op: str) -> str:
    return f"nisa.tensor_tensor(dst, data1, data2, op=nl.{op})"


def _reduction(op: str) -> str:
    return f"nisa.tensor_reduce(dst, op=nl.{op}, data=data, axis=1)"


_MOVES: Final = "nisa.dma_copy between HBM and SBUF"
_NO_FLOAT64: Final = "nl.float32; the hardware has no float64"
_TYPES: Final = {
    "float": "nl.float32",
    "fp32": "nl.float32",
    "f32": "nl.float32",
    "half": "nl.float16",
    "fp16": "nl.float16",
    "f16": "nl.float16",
    "bf16": "nl.bfloat16",
    "fp8": "nl.float8_e4m3 or nl.float8_e5m2",
    "double": _NO_FLOAT64,
    "float64": _NO_FLOAT64,
    "fp64": _NO_FLOAT64,
    "byte": "nl.uint8",
    "char": "nl.int8",
    "short": "nl.int16",
    "int": "nl.int32",
    "long": "nl.int64",
    "i8": "nl.int8",
    "i16": "nl.int16",
    "i32": "nl.int32",
    "i64": "nl.int64",
    "u8": "nl.uint8",
    "u16": "nl.uint16",
    "u32": "nl.uint32",
}
_ARITHMETIC: Final = {
    "sub": "nl.subtract",
    "mul": "nl.multiply",
    "div": "nl.divide",
    "truediv": "nl.divide",
    "true_divide": "nl.divide",
    "floordiv": "nl.floor(nl.divide(x, y))",
    "floor_divide": "nl.floor(nl.divide(x, y))",
    "remainder": "nl.mod",
    "pow": "nl.power",
    "neg": "nl.negative",
    "absolute": "nl.abs",
    "inv": "nl.reciprocal",
    "clamp": "nl.minimum(nl.maximum(x, low), high)",
    "clip": "nl.minimum(nl.maximum(x, low), high)",
    "atan": "nl.arctan",
    "swish": "nl.silu",
    "dot": "nl.matmul",
    "mm": "nl.matmul",
    "eq": "nl.equal",
    "ne": "nl.not_equal",
    "gt": "nl.greater",
    "ge": "nl.greater_equal",
    "lt": "nl.less",
    "le": "nl.less_equal",
    "bitwise_not": "nl.invert",
    "bitwise_left_shift": "nl.left_shift",
    "bitwise_right_shift": "nl.right_shift",
}
_REDUCTIONS: Final = {
    "amax": "nl.max",
    "amin": "nl.min",
    "std": "nl.sqrt(nl.var(x, axis))",
    "argmax": "nisa.max8 and nisa.nc_find_index8",
    "cumsum": "nisa.tensor_tensor_scan",
}
_TENSORS: Final = {
    "empty": "nl.ndarray",
    "ones_like": "nl.ones(x.shape, x.dtype)",
    "full_like": "nl.full(x.shape, value, x.dtype)",
    "cast": "nisa.tensor_copy to a tile of the other type",
    "astype": "nisa.tensor_copy to a tile of the other type",
    "concat": "one larger tile, and nisa.tensor_copy to a slice of it for each part",
    "concatenate": "one larger tile, and nisa.tensor_copy to a slice of it for each part",
    "cat": "one larger tile, and nisa.tensor_copy to a slice of it for each part",
    "reshape": "the method of the tensor, x.reshape(shape)",
    "permute": "the method of the tensor, x.permute(dims)",
    "expand": "nl.broadcast_to",
    "dram": "nl.private_hbm or nl.shared_hbm",
    "print": "nl.device_print",
}

# By module and name, the text that follows "use". The names of ``NUMPY_NAMES`` are those of functions of numpy.
OTHER_NAMES: Final[dict[str, dict[str, str]]] = {
    "nki": {},
    "nki.language": {**_TYPES, **_ARITHMETIC, **_REDUCTIONS, **_TENSORS},
    "nki.isa": {
        "tensor_add": _elementwise("add"),
        "tensor_sub": _elementwise("subtract"),
        "tensor_subtract": _elementwise("subtract"),
        "tensor_mul": _elementwise("multiply"),
        "tensor_multiply": _elementwise("multiply"),
        "tensor_div": "nl.divide, or nisa.reciprocal and nisa.tensor_tensor(dst, data1, data2, op=nl.multiply)",
        "tensor_max": _elementwise("maximum"),
        "tensor_min": _elementwise("minimum"),
        "reduce": "nisa.tensor_reduce",
        "reduce_sum": _reduction("add"),
        "reduce_max": _reduction("maximum"),
        "tensor_sum": _reduction("add"),
        "copy": f"nisa.tensor_copy on chip, or {_MOVES}",
        "memcpy": f"nisa.tensor_copy on chip, or {_MOVES}",
        "load": _MOVES,
        "store": _MOVES,
        "dma": _MOVES,
        "dma_start": _MOVES,
        "dma_load": _MOVES,
        "dma_store": _MOVES,
        "matmul": "nisa.nc_matmul",
        "mm": "nisa.nc_matmul",
        "transpose": "nisa.nc_transpose or nisa.dma_transpose",
        "tensor_transpose": "nisa.nc_transpose or nisa.dma_transpose",
        "act": "nisa.activation",
        "activate": "nisa.activation",
        "fill": "nisa.memset",
        "zeros": "nisa.memset(dst, value=0)",
        "arange": "nisa.iota",
        "barrier": "nisa.core_barrier",
        "cumsum": "nisa.tensor_tensor_scan",
        "scan": "nisa.tensor_tensor_scan",
        "gather": "nisa.nc_n_gather on chip, or nisa.dma_copy from a view with ap(vector_offset=...)",
        "scatter": "nisa.dma_copy to a view with ap(vector_offset=...)",
    },
}


_ON_CORES: Final = "kernel[n], where n is the number of cores, 1 or 2, and nl.program_id(0) in the kernel"
_PLACED: Final = "nl.ndarray with address=(partition, byte), and a list of tiles for a block dimension"
_CONFIGURED: Final = "nki.jit(compile_config=nki.compiler.CompileConfig(...)), or nothing"
_MEASURED: Final = "nkilib.simulator.profile(kernel, ...) for modelled times, and Neuron's profiler on a device"
_CALLED: Final = "a call of the kernel from nki.jit, which runs it on a device, or here in the simulator"

# Names of older releases of NKI, by module. The text follows "use". Sources: nki/migration/index.rst, the release notes
# of NKI (release-notes/components/nki.rst), and the lists of the first release (general/nki/api/nki*.rst).
REMOVED: Final[dict[str, dict[str, str]]] = {
    "nki": {
        "baremetal": _CALLED,
        "benchmark": _MEASURED,
        "profile": _MEASURED,
        "trace": "nki.jit",
        "nki_jit": "nki.jit",
        "nki_call": _CALLED,
        "simulate_kernel": "nki.simulate(kernel)(...)",
        "tensor": "nl.NkiTensor",
        "meta": "nl.NkiTensor for nki.meta.tensor",
    },
    "nki.compiler": {
        "sbuf": _PLACED,
        "psum": _PLACED,
        "allocation_scope": _PLACED,
        "multi_buffer": "a list of tiles that the iterations use in turn",
        "no_reorder": "nl.no_reorder",
        "enable_stack_allocator": _CONFIGURED,
        "force_auto_alloc": _CONFIGURED,
        "skip_middle_end_transformations": _CONFIGURED,
    },
    "nki.isa": {
        "tensor_copy_dynamic_src": "nisa.tensor_copy with a view from ap(scalar_offset=...) or select()",
        "tensor_copy_dynamic_dst": "nisa.tensor_copy with a view from ap(scalar_offset=...) or select()",
    },
    "nki.language": {
        "arange": "slices, nl.ds(start, size) or NkiTensor.ap",
        "mgrid": "slices, nl.ds(start, size) or NkiTensor.ap",
        "par_dim": "a shape whose first dimension counts partitions",
        "spmd_dim": _ON_CORES,
        "nc": _ON_CORES,
        "loop_reduce": "nisa.nc_matmul into one tile in PSUM, which adds up, or nisa.tensor_tensor(dst, data1, data2, "
        "op=nl.add) with a tile that is made before the loop",
        "static_cast": "array.astype(dtype) outside a kernel, and nisa.tensor_copy to a tile of the other type inside",
        "atomic_rmw": "nisa.dma_compute(dst, srcs, reduce_op=nl.add)",
    },
}
# What a script is told that imports the modules of the first release.
FIRST_NKI: Final = (
    "this script is written for the first NKI, in the package neuronxcc; the simulator has NKI 0.7: change its imports "
    "to nki, nki.isa and nki.language, as AWS's migration guide says"
)


def _function(name: str) -> str:
    return f"nl.{name}"


def _activation(op: str) -> str:
    return f"nl.{op}, or nisa.activation(dst, op=nl.{op}, data=data)"


_FUNCTIONS: Final = (
    *("add", "subtract", "multiply", "divide", "mod", "fmod", "power", "matmul", "maximum", "minimum", "negative"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("ceil", "floor", "trunc", "cos", "tan", "all", "average", "var"),
    *("where", "transpose", "broadcast_to", "expand_dims", "copy", "zeros_like", "empty_like"),
)
_ACTIVATIONS: Final = ("arctan", "exp", "log", "reciprocal", "sign", "sin", "sqrt", "square", "tanh")

NUMPY_NAMES: Final[dict[str, str]] = {
    **_ARITHMETIC,
    **_REDUCTIONS,
    **_TENSORS,
    **{name: _function(name) for name in _FUNCTIONS},
    **{name: _activation(name) for name in _ACTIVATIONS},
    "absolute": _activation("abs"),
    "sum": f"nl.sum, or {_reduction('add')}",
    "prod": f"nl.prod, or {_reduction('multiply')}",
    "max": f"nl.max, or {_reduction('maximum')}",
    "amax": f"nl.max, or {_reduction('maximum')}",
    "min": f"nl.min, or {_reduction('minimum')}",
    "amin": f"nl.min, or {_reduction('minimum')}",
    "mean": f"nl.mean, or {_reduction('add')} and nisa.tensor_scalar(dst, dst, op0=nl.multiply, operand0=1 / n)",
}
