# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacement of the module ``nki.isa``.

It has every public name of NKI 0.7. A function that is not implemented yet raises NotImplementedError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engines.between_cores import core_barrier, sendrecv, sendrecv_compute
from ..engines.dma_instructions import dma_compute, dma_copy, dma_transpose
from ..engines.gpsimd.across_partitions import nonzero_with_count, sequence_bounds, tensor_partition_reduce, topk
from ..engines.gpsimd.gather import local_gather, nc_n_gather
from ..engines.gpsimd.generators import dropout, iota, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from ..engines.register_moves import register_load, register_move, register_store, scalar_load, scalar_store
from ..engines.scalar import activate2, activation, activation_reduce
from ..engines.tensor.matmul import nc_matmul, nc_transpose
from ..engines.tensor.mx import nc_matmul_mx, quantize_mx
from ..engines.vector.accumulating import (
    exponential,
    scalar_tensor_tensor,
    select_reduce,
    tensor_scalar_reduce,
)
from ..engines.vector.arithmetic import (
    memset,
    reciprocal,
    tensor_copy,
    tensor_reduce,
    tensor_scalar,
    tensor_tensor,
)
from ..engines.vector.batch_norm import bn_aggr, bn_stats
from ..engines.vector.scan import tensor_scalar_cumulative, tensor_tensor_scan
from ..engines.vector.search import max8, nc_find_index8, nc_match_replace8
from ..engines.vector.selection import affine_select, range_select, tensor_copy_predicated
from ..engines.vector.shuffle import nc_stream_shuffle
from ..isa.definition import NkiInstruction
from ..language.programs import get_nc_sub_version, get_nc_version, register_alloc
from ..tensors.device_integers import NkiScalar, VirtualRegister
from ..terms.enums import dependency, dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from ..terms.errors import NkiValidationError
from .stand_ins import alias, offer

# Deprecated names of the members of ``engine``.
tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown


__all__ = [
    "NkiInstruction",
    "NkiScalar",
    "NkiValidationError",
    "VirtualRegister",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dependency",
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
    "scalar_load",
    "scalar_store",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sendrecv_compute",
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

offer("nki.isa", __all__, globals())

if not TYPE_CHECKING:  # a type checker would take every name for a known one

    def __getattr__(name: str) -> Any:
        """Return the object that older kernels use as ``nki.isa.<name>``, or raise an error; see ``stand_ins.py``."""
        return alias("nki.isa", name)
