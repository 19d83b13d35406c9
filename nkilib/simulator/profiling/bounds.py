# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The least time that the hardware needs for the work of a launch, by engine. Modelled, not measured.

- :func:`bounds_us`: the bound of work that the caller states (exponentials, maxima, multiply-adds, bytes of HBM). This
  bound comes from hardware constants alone, never from the instructions that a kernel chose;
- :func:`counted_bounds_us`: the bound of the instructions and transfers of a launch. This bound holds for any kernel
  that runs the same instructions on the same data.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from nkilib.base.statements import Work

from ..hardware.generations import PARTITIONS, Generation
from ..terms import dtypes as dt
from ..terms.dtypes import as_dtype
from ..terms.enums import Engine, nc_version
from ..timing.costs import EXPONENTIAL_BF16_CYCLES, FAST_TYPES
from ..timing.dependencies import Tracked
from ..timing.footprints import OccupiedBytes
from ..timing.instruction import InstructionKind
from ..timing.parameters import NS_PER_US, ModelParameters
from ..timing.settling import Settling
from ..timing.trace import Collection
from .why.critical_path import ENGINES


def bounds_us(work: Work, cores: int, generation: Generation, parameters: ModelParameters) -> dict[str, float]:
    """Return the least time, in microseconds, that each engine needs for its part of the work.

    The work is spread evenly over cores and partitions.

    Args:
        work: the work of the launch.
        cores: the number of cores.
        generation: the hardware.
        parameters: the assumptions of the model.
    """
    dtype, timing = as_dtype(work.dtype), generation.timing
    lanes = cores * PARTITIONS
    scalar = timing.clock_ghz[Engine.scalar]
    scalar *= timing.scalar_bf16_per_cycle if dtype == dt.bfloat16 else 1
    vector = timing.clock_ghz[Engine.vector]
    exponentials = {"scalar": work.exponentials / lanes / scalar}
    if generation.version.value >= nc_version.gen4.value:  # has nisa.exponential
        cycles = EXPONENTIAL_BF16_CYCLES if dtype == dt.bfloat16 else parameters.fp32_exponential_cycles
        exponentials["vector"] = work.exponentials / lanes * cycles / vector
    fastest = min(exponentials, key=lambda name: exponentials[name])
    halves = parameters.halves_bf16_max and dtype in FAST_TYPES
    maxima = work.maxima / lanes * (0.5 if halves else 1.0) / vector
    passes = 4 if dtype == dt.float32 else 1
    products = work.multiply_adds * passes / (cores * PARTITIONS * PARTITIONS) / timing.clock_ghz[Engine.tensor]
    needed = [
        ("dma", work.hbm_bytes / (cores * timing.dma.core_gb_per_s)),
        (fastest, exponentials[fastest]),
        ("vector", maxima),
        ("tensor", products),
    ]
    bounds: dict[str, float] = {}
    for name, nanoseconds in needed:
        if nanoseconds:
            bounds[name] = max(bounds.get(name, 0.0), nanoseconds / NS_PER_US)
    return bounds


class _MovedBytes:
    """The bytes of a tensor that are read from HBM, or that are written to it.

    Bytes that several cores move count once, and the total is at most the size of the tensor.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: set[OccupiedBytes] = set()
        self._moved = 0  # bytes that an index chooses, which count as different

    def add_read(self, known: Tracked, core: Settling) -> None:
        # Only parts that the core has not written before.
        if core.log.repeats:  # nothing else is known of iterations that were left out
            self._moved += core.hbm_read[known.name]
        else:
            self._parts |= known.hbm_uses.brought_in()
            self._moved += known.hbm_uses.gathered_bytes

    def add_written(self, known: Tracked, core: Settling) -> None:
        if core.log.repeats:
            self._moved += core.hbm_written[known.name]
        else:
            self._parts |= known.hbm_uses.written()
            self._moved += known.hbm_uses.scattered_bytes

    @property
    def nbytes(self) -> int:
        return min(self._most, self._moved + sum(part.nbytes for part in self._parts))


def _crossing_bytes(collection: Collection) -> int:
    # Reads of the caller's tensors and writes of tensors that go back to the caller; each byte counts once per
    # direction.
    brought: dict[int, _MovedBytes] = {}
    written: dict[int, _MovedBytes] = {}
    for trace in collection.traces:
        for number, known in trace.in_hbm.items():
            if number in collection.given:
                brought.setdefault(number, _MovedBytes(known.nbytes)).add_read(known, trace.settled)
            if number in collection.given | collection.returned:
                written.setdefault(number, _MovedBytes(known.nbytes)).add_written(known, trace.settled)
    return sum(moved.nbytes for moved in (*brought.values(), *written.values()))


def _filled(kind: InstructionKind) -> float:
    # The share of partitions, or of rows and columns of the Tensor engine, that an instruction uses.
    stationary = kind.operands.get("stationary")
    if stationary is not None:
        rows, *columns = stationary[0]
        return min(1.0, rows / PARTITIONS) * min(1.0, prod(columns) / PARTITIONS)
    return min(1.0, max((shape[0] for shape, _ in kind.operands.values() if shape), default=1) / PARTITIONS)


def _cycles(collection: Collection) -> dict[str, float]:
    # Instructions that another engine can run too do not count.
    kinds: dict[int, InstructionKind] = {}
    counts: Counter[int] = Counter()
    for trace in collection.traces:
        for kind, count in trace.settled.log.kinds():
            kinds[id(kind)] = kind
            counts[id(kind)] += count
    cycles: dict[str, float] = {}
    for key, kind in kinds.items():
        if kind.cycles and not kind.others:
            cycles[kind.engine] = cycles.get(kind.engine, 0.0) + counts[key] * kind.cycles * _filled(kind)
    return cycles


def counted_bounds_us(collection: Collection, generation: Generation) -> dict[str, float]:
    """Return the least time, in microseconds, that each engine needs for the instructions and transfers of a launch.

    The work is spread evenly over the cores. Each byte of input and output crosses HBM once, at the rate of all DMA
    engines. Instructions that several engines can run are left out. The cycles of any other instruction are multiplied
    by the share of the partitions that it uses (of the rows and columns, for the Tensor engine).

    Args:
        collection: the traces of the cores of the launch.
        generation: the hardware.
    """
    timing, cores = generation.timing, len(collection.traces)
    bounds = {"dma": _crossing_bytes(collection) / (cores * timing.dma.core_gb_per_s)}
    for name, cycles in _cycles(collection).items():
        bounds[name] = cycles / (cores * timing.clock_ghz[ENGINES[name]])
    return {name: nanoseconds / NS_PER_US for name, nanoseconds in bounds.items() if nanoseconds}
