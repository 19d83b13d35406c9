"""The instructions of the Vector engine for mean and variance: statistics of pieces, and their aggregation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...isa.checks import at_most_rank, same_partitions
from ...isa.operand import Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...numerics.casts import store_float
from ...target.tile_size import TileSize
from ...tensors.tensor import NkiTensor
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...timing import costs

# Elements of one (count, mean, variance * count); bn_stats leaves one for the even and one for the odd elements.
_TUPLE = 3
_STATISTICS = 2 * _TUPLE
_MEAN_AND_VARIANCE = 2
_RANK_OF_AGGREGATE = 3

Float32s = npt.NDArray[np.float32]


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.vector,),
    cost=costs.streamed("data"),
)
def bn_stats(call: Call, dst: NkiTensor, data: NkiTensor) -> None:
    """Count, mean and variance * count of the even elements of each partition, then the same of the odd ones.

    The free dimensions are flattened, at most ``nl.tile_size.bn_stats_fmax`` elements, and the first element is an even
    one; ``dst`` has 6 elements per partition. Float32 arithmetic. A single element leaves the odd tuple (0, 0, 0).
    """
    same_partitions({"dst": dst, "data": data}, "dst", "data")
    if not 1 <= data.free_size <= TileSize.bn_stats_fmax:
        raise NkiValidationError(
            f"operand 'data' must have 1 to {TileSize.bn_stats_fmax} elements per partition "
            f"(nl.tile_size.bn_stats_fmax), got {data}: call bn_stats on pieces and combine them with bn_aggr"
        )
    _require_elements(dst, _STATISTICS, "a tuple (count, mean, variance * count) for even and one for odd elements")
    values = _rows(data)
    store_float(dst.array, np.concatenate([_tuple_of(values[:, 0::2]), _tuple_of(values[:, 1::2])], axis=1), dst.dtype)


def _tuple_of(values: Float32s) -> Float32s:
    """Count, mean and variance * count of each row; zeros for rows of nothing."""
    statistics = np.zeros((values.shape[0], _TUPLE), np.float32)
    if values.shape[1]:
        mean = values.sum(axis=1, dtype=np.float32) / np.float32(values.shape[1])
        statistics[:, 0] = values.shape[1]
        statistics[:, 1] = mean
        statistics[:, 2] = np.square(values - mean[:, np.newaxis]).sum(axis=1, dtype=np.float32)
    return statistics


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.vector,),
    cost=costs.assumed("data"),
)
def bn_aggr(call: Call, dst: NkiTensor, data: NkiTensor) -> None:
    """Mean and (population) variance of each partition from the tuples (count, mean, variance * count) in ``data``.

    ``data`` holds any number of tuples per partition, ``dst`` two elements in at most two free dimensions. Float32
    arithmetic. A tuple of count 0 adds nothing; where all counts are 0, mean and variance are NaN.
    """
    at_most_rank({"dst": dst}, _RANK_OF_AGGREGATE, "dst")
    same_partitions({"dst": dst, "data": data}, "dst", "data")
    if data.free_size == 0 or data.free_size % _TUPLE:
        raise NkiValidationError(
            f"operand 'data' must have a multiple of {_TUPLE} elements per partition, tuples (count, mean, variance * "
            f"count) as bn_stats writes them, got {data}"
        )
    _require_elements(dst, _MEAN_AND_VARIANCE, "mean and variance")
    tuples = _rows(data).reshape(data.shape[0], data.free_size // _TUPLE, _TUPLE)
    count, mean, squares = np.moveaxis(tuples, 2, 0)
    total = count.sum(axis=1, keepdims=True)
    overall = (count * mean).sum(axis=1, keepdims=True) / total
    variance = (squares + count * np.square(mean - overall)).sum(axis=1, keepdims=True) / total
    store_float(dst.array, np.concatenate([overall, variance], axis=1), dst.dtype)


def _rows(data: NkiTensor) -> Float32s:
    """A copy of the elements in float32, of shape (partitions, elements per partition)."""
    return data.array.astype(np.float32).reshape(data.shape[0], data.free_size)


def _require_elements(dst: NkiTensor, elements: int, meaning: str) -> None:
    if dst.free_size != elements:
        raise NkiValidationError(f"operand 'dst' must have {elements} elements per partition ({meaning}), got {dst}")
