# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions for mean and variance: :func:`bn_stats` of chunks of a row, and :func:`bn_aggr`, which combines
them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...hardware.current import TileSize
from ...isa.checks import at_most_rank, same_partitions
from ...isa.definition import Operand, output
from ...machine.issue import Call, instruction
from ...tensors.tensor import NkiTensor
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..rowwise import reduce_rows

# Elements of one (count, mean, variance * count); bn_stats leaves one for the even and one for the odd elements.
_TUPLE = 3
_STATISTICS = 2 * _TUPLE
_MEAN_AND_VARIANCE = 2
_RANK_OF_AGGREGATE = 3

Float32s = npt.NDArray[np.float32]


def _require_elements(dst: NkiTensor, elements: int, meaning: str) -> None:
    if dst.free_size != elements:
        raise NkiValidationError(f"operand 'dst' must have {elements} elements per partition ({meaning}), got {dst}")


def _put_tuple(values: Float32s, statistics: Float32s) -> None:
    # (count, mean, variance * count) of each row; all zero if rows have no values.
    count = values.shape[1]
    if not count:
        statistics[...] = 0
        return
    mean = values.sum(axis=1, dtype=np.float32) / np.float32(count)
    statistics[:, 0] = count
    statistics[:, 1] = mean
    statistics[:, 2] = np.square(values - mean[:, np.newaxis]).sum(axis=1, dtype=np.float32)


def _describe(values: Float32s, statistics: Float32s) -> None:
    _put_tuple(values[:, 0::2], statistics[:, :_TUPLE])
    _put_tuple(values[:, 1::2], statistics[:, _TUPLE:])


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.vector,),
    cost=costs.streamed("data"),
)
def bn_stats(call: Call, dst: NkiTensor, data: NkiTensor) -> None:
    """Compute (count, mean, variance * count) of the even elements of each partition, then of its odd elements.

    Even elements are those at positions 0, 2, ... of the flattened free dimensions, which have at most
    ``nl.tile_size.bn_stats_fmax`` elements; ``dst`` has 6 elements per partition. Arithmetic is float32. For a single
    element, the odd tuple is (0, 0, 0).
    """
    same_partitions({"dst": dst, "data": data}, "dst", "data")
    if not 1 <= data.free_size <= TileSize.bn_stats_fmax:
        raise NkiValidationError(
            f"operand 'data' must have 1 to {TileSize.bn_stats_fmax} elements per partition "
            f"(nl.tile_size.bn_stats_fmax), got {data}: call bn_stats on pieces and combine them with bn_aggr"
        )
    _require_elements(dst, _STATISTICS, "a tuple (count, mean, variance * count) for even and one for odd elements")
    reduce_rows(call.core, dst, data, _describe)


def _aggregate(tuples: Float32s, results: Float32s) -> None:
    count, mean, squares = tuples[:, 0::_TUPLE], tuples[:, 1::_TUPLE], tuples[:, 2::_TUPLE]
    total = count.sum(axis=1, keepdims=True)
    overall = (count * mean).sum(axis=1, keepdims=True) / total
    results[:, :1] = overall
    results[:, 1:] = (squares + count * np.square(mean - overall)).sum(axis=1, keepdims=True) / total


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.vector,),
    cost=costs.assumed("data"),
)
def bn_aggr(call: Call, dst: NkiTensor, data: NkiTensor) -> None:
    """Compute mean and population variance of each partition from tuples (count, mean, variance * count).

    ``data`` has any number of tuples per partition; ``dst`` has two elements per partition, in at most two free
    dimensions. Arithmetic is float32. A tuple of count 0 adds nothing; if all counts are 0, mean and variance are NaN.
    """
    at_most_rank({"dst": dst}, _RANK_OF_AGGREGATE, "dst")
    same_partitions({"dst": dst, "data": data}, "dst", "data")
    if data.free_size == 0 or data.free_size % _TUPLE:
        raise NkiValidationError(
            f"operand 'data' must have a multiple of {_TUPLE} elements per partition, tuples (count, mean, variance * "
            f"count) as bn_stats writes them, got {data}"
        )
    _require_elements(dst, _MEAN_AND_VARIANCE, "mean and variance")
    reduce_rows(call.core, dst, data, _aggregate)
