"""The instructions, in a package for each engine."""

from .dma.compute import dma_compute
from .dma.copy import dma_copy
from .dma.transpose import dma_transpose
from .gpsimd.gather import local_gather, nc_n_gather
from .gpsimd.iota import iota
from .gpsimd.nonzero import nonzero_with_count
from .gpsimd.partition_reduce import tensor_partition_reduce
from .gpsimd.random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from .gpsimd.sequence import sequence_bounds
from .gpsimd.topk import topk
from .scalar.activate2 import activate2
from .scalar.activation import activation, activation_reduce
from .sync.barrier import core_barrier
from .sync.registers import register_load, register_move, register_store
from .sync.sendrecv import sendrecv
from .tensor.matmul import nc_matmul, nc_transpose
from .tensor.mx import nc_matmul_mx, quantize_mx
from .vector.accumulating import exponential, select_reduce, tensor_scalar_reduce
from .vector.arithmetic import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_reduce,
    tensor_scalar,
    tensor_tensor,
)
from .vector.bn import bn_aggr, bn_stats
from .vector.predicated import tensor_copy_predicated
from .vector.scan import tensor_scalar_cumulative, tensor_tensor_scan
from .vector.search import max8, nc_find_index8, nc_match_replace8
from .vector.select import affine_select, range_select
from .vector.shuffle import nc_stream_shuffle

__all__ = [
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dma_compute",
    "dma_copy",
    "dma_transpose",
    "dropout",
    "exponential",
    "iota",
    "local_gather",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nonzero_with_count",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
]
