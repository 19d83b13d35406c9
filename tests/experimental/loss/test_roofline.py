"""How close the kernels are modelled to come to what trn2 allows: modelled, not measured.

The bound is worked out here from the rates of a core, with no regard to what the kernels do: 16 DMA engines of 23 GB/s,
128 lanes, Scalar at 1.2 GHz for one exponential an element, and in the forward Vector at 0.96 GHz for one maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest

import nkilib.simulator
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nl
from nkilib.simulator.model.parameters import ModelParameters
from nkilib.simulator.model.profile import Profile, profile
from nkilib.simulator.spec import spec

from .loss_checks import as_nl
from .loss_inputs import BF16, FP32

POSITIONS, CORES = 4096, 2
DMA_BYTES_PER_US, LANES, SCALAR_PER_US, VECTOR_PER_US = 16 * 23e3, 128, 1200, 960

CASES = [
    pytest.param(vocabulary, dtype, id=f"{vocabulary} {dtype}")
    for vocabulary in (32128, 129280, 151936, 202408)
    for dtype in (BF16, FP32)
]


def _tiling(vocabulary: int, dtype: Any) -> dict[str, Any]:
    """Chunks of equal length, of at most 21 KiB in bfloat16 and 32 KiB in float32; all partitions."""
    chunks = ceil(vocabulary / (8192 if dtype == FP32 else 10752))
    return {"positions_per_batch": 128, "chunk_size": ceil(vocabulary / chunks), "dtype": as_nl(dtype)}


def _forward(vocabulary: int, dtype: Any, parameters: ModelParameters, positions: int = POSITIONS) -> Profile:
    logits, targets = spec((positions, vocabulary), as_nl(dtype)), spec((positions,), nl.int32)
    tiling = _tiling(vocabulary, dtype)
    return profile(cross_entropy_forward[CORES], logits, targets, parameters=parameters, **tiling)


def _backward(vocabulary: int, dtype: Any, parameters: ModelParameters, positions: int = POSITIONS) -> Profile:
    logits, targets = spec((positions, vocabulary), as_nl(dtype)), spec((positions,), nl.int32)
    lse, tiling = spec((positions,), nl.float32), _tiling(vocabulary, dtype)
    return profile(cross_entropy_backward[CORES], logits, targets, lse, parameters=parameters, **tiling)


def _bound_us(vocabulary: int, dtype: Any, passes: int, maxima_per_cycle: float) -> float:
    """``passes`` over the logits in HBM, one exponential an element, and a maximum unless ``maxima_per_cycle`` is 0."""
    elements = POSITIONS * vocabulary / CORES
    maxima = elements / LANES / VECTOR_PER_US / maxima_per_cycle if maxima_per_cycle else 0.0
    return max(passes * elements * dtype.itemsize / DMA_BYTES_PER_US, elements / LANES / SCALAR_PER_US, maxima)


@pytest.mark.parametrize("halves", [False, True], ids=["max N", "bf16 max N/2"])
@pytest.mark.parametrize(("vocabulary", "dtype"), CASES)
def test_forward_is_within_a_tenth_of_the_bound(vocabulary: int, dtype: Any, halves: bool) -> None:
    found = _forward(vocabulary, dtype, ModelParameters(halves_bf16_max=halves))
    bound = _bound_us(vocabulary, dtype, 1, 2.0 if halves and dtype == BF16 else 1.0)
    assert bound < found.time_us <= 1.10 * bound


@pytest.mark.parametrize(("vocabulary", "dtype"), CASES)
def test_backward_is_within_a_tenth_of_the_bound(vocabulary: int, dtype: Any) -> None:
    found = _backward(vocabulary, dtype, ModelParameters())
    bound = _bound_us(vocabulary, dtype, 2, 0.0)
    assert bound < found.time_us <= 1.10 * bound


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_one_queue_for_loads_and_stores_is_enough(dtype: Any) -> None:
    """The compiler chooses the queues: the order of issue alone has to keep the engines busy."""
    parameters = ModelParameters(queues_by_direction=False)
    assert _forward(32128, dtype, parameters).time_us <= 1.10 * _bound_us(32128, dtype, 1, 1.0)
    assert _backward(32128, dtype, parameters).time_us <= 1.10 * _bound_us(32128, dtype, 2, 0.0)


def test_logs_are_rare() -> None:
    """For 16 batches a core takes two logs, not 16: each loads two activation tables, while exponentials wait.

    What remains of the activations beside one a chunk are these logs, and as many exponentials of weights.
    """
    chunks = POSITIONS // 128 * ceil(32128 / _tiling(32128, BF16)["chunk_size"])
    activations = _forward(32128, BF16, ModelParameters()).instruction_counts["activation"]
    assert activations - chunks == CORES * (2 + 2)


@pytest.mark.parametrize(("direction", "passes", "maxima"), [(_forward, 1, 1.0), (_backward, 2, 0.0)])
def test_a_batch_streams_while_the_one_before_is_finished(direction: Any, passes: int, maxima: float) -> None:
    """What a further batch adds is hardly more than the bound: no engine drains between batches."""
    fewer, more = (direction(32128, BF16, ModelParameters(), positions).time_us for positions in (2048, 4096))
    assert more - fewer <= 1.05 * _bound_us(32128, BF16, passes, maxima) / 2


@dataclass(frozen=True)
class Shape:
    """A launch."""

    positions: int
    vocabulary: int
    positions_per_batch: int
    chunk_size: int


# One chunk; a core without a position; ragged ends; more chunks than columns of statistics; a training step.
SHAPES = [
    Shape(1, 100, 1, 100),
    Shape(2, 100, 1, 100),
    Shape(5, 100, 2, 100),
    Shape(37, 101, 4, 30),
    Shape(1, 129, 1, 1),
    Shape(3, 400, 2, 1),
    Shape(4096, 32128, 128, 8032),
]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_instructions_are_few(shape: Shape, cores: int) -> None:
    """At most 6 for a chunk of a batch and 24 for a batch, whatever engine they run on."""
    logits = spec((shape.positions, shape.vocabulary), nl.bfloat16)
    targets, lse = spec((shape.positions,), nl.int32), spec((shape.positions,), nl.float32)
    tiling = {"positions_per_batch": shape.positions_per_batch, "chunk_size": shape.chunk_size}
    batches = sum(ceil(len(range(core, shape.positions, cores)) / shape.positions_per_batch) for core in range(cores))
    allowed = (6 * ceil(shape.vocabulary / shape.chunk_size) + 24) * batches
    for kernel, arguments in ((cross_entropy_forward, (targets,)), (cross_entropy_backward, (targets, lse))):
        with nkilib.simulator.recording() as record:
            kernel[cores](logits, *arguments, **tiling)
        assert 0 < sum(record.instruction_counts.values()) <= allowed
