"""Stands for the module ``nki.isa``: every public name of NKI 0.6, implemented or raising NotImplementedError."""

from __future__ import annotations

from typing import Any

from ..engines.dma import dma_copy
from ..engines.gpsimd import iota
from ..engines.scalar import activation, activation_reduce
from ..engines.sync import core_barrier
from ..engines.tensor import nc_matmul, nc_transpose
from ..engines.vector import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_reduce,
    tensor_scalar,
    tensor_tensor,
)
from ..engines.vector_accumulate import exponential, select_reduce, tensor_scalar_reduce
from ..enums import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from ..errors import NkiValidationError
from ..instruction import NkiInstruction
from ..objects import NKIObject
from ..pending import pending
from ..programs import get_nc_sub_version, get_nc_version

# Deprecated names of the members of ``engine``.
tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown


class VirtualRegister(NKIObject):
    """A register of an engine; not implemented yet."""

    def __init__(self, state: Any = None, frozen: bool = False) -> None:
        raise NotImplementedError("nki.isa.VirtualRegister is not implemented in the simulator yet")


activate2 = pending("nki.isa.activate2")
affine_select = pending("nki.isa.affine_select")
bn_aggr = pending("nki.isa.bn_aggr")
bn_stats = pending("nki.isa.bn_stats")
dma_compute = pending("nki.isa.dma_compute")
dma_transpose = pending("nki.isa.dma_transpose")
dropout = pending("nki.isa.dropout")
local_gather = pending("nki.isa.local_gather")
max8 = pending("nki.isa.max8")
nc_find_index8 = pending("nki.isa.nc_find_index8")
nc_match_replace8 = pending("nki.isa.nc_match_replace8")
nc_matmul_mx = pending("nki.isa.nc_matmul_mx")
nc_n_gather = pending("nki.isa.nc_n_gather")
nc_stream_shuffle = pending("nki.isa.nc_stream_shuffle")
nonzero_with_count = pending("nki.isa.nonzero_with_count")
quantize_mx = pending("nki.isa.quantize_mx")
rand2 = pending("nki.isa.rand2")
rand_get_state = pending("nki.isa.rand_get_state")
rand_set_state = pending("nki.isa.rand_set_state")
range_select = pending("nki.isa.range_select")
register_alloc = pending("nki.isa.register_alloc")
register_load = pending("nki.isa.register_load")
register_move = pending("nki.isa.register_move")
register_store = pending("nki.isa.register_store")
rng = pending("nki.isa.rng")
sendrecv = pending("nki.isa.sendrecv")
sequence_bounds = pending("nki.isa.sequence_bounds")
set_rng_seed = pending("nki.isa.set_rng_seed")
tensor_copy_predicated = pending("nki.isa.tensor_copy_predicated")
tensor_partition_reduce = pending("nki.isa.tensor_partition_reduce")
tensor_scalar_cumulative = pending("nki.isa.tensor_scalar_cumulative")
tensor_tensor_scan = pending("nki.isa.tensor_tensor_scan")
topk = pending("nki.isa.topk")

__all__ = [
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "exponential",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "nonzero_with_count",
    "oob_mode",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
    "unknown_engine",
    "vector_engine",
]
