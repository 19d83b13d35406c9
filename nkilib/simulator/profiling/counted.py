# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A bound for kernels that do not state their work, counted from what they did. Modelled, not measured.

The bound holds for any kernel that runs the same instructions on the same data. Each byte of input and output crosses
HBM once, at the rate of all DMA engines. An instruction that only one engine can run takes its cycles there, as if its
elements filled all partitions, or all rows and columns of the Tensor engine.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from ..hardware.generation import Generation
from ..hardware.limits import PARTITIONS
from ..timing.collect import Collection
from ..timing.footprints import Tracked
from ..timing.parts import Part
from ..timing.plans import Plan
from ..timing.settling import Settling
from ..timing.uses import HbmUses
from .why.cores import ENGINES

_NS_PER_US = 1000.0


def counted_bounds_us(collection: Collection, generation: Generation) -> dict[str, float]:
    """Return the least microseconds that each engine needs for what a launch did, spread evenly over the cores."""
    timing, cores = generation.timing, len(collection.traces)
    bounds = {"dma": _crossing_bytes(collection) / (cores * timing.dma.core_gb_per_s)}
    for name, cycles in _cycles(collection).items():
        bounds[name] = cycles / (cores * timing.clock_ghz[ENGINES[name]])
    return {name: nanoseconds / _NS_PER_US for name, nanoseconds in bounds.items() if nanoseconds}


def _crossing_bytes(collection: Collection) -> int:
    """Return the number of bytes that are read from the caller's tensors, or written to tensors that go back to it.

    Each byte counts once in each direction.
    """
    brought: dict[int, _Crossing] = {}
    written: dict[int, _Crossing] = {}
    for trace in collection.traces:
        for number, known in trace.in_hbm.items():
            if number in collection.given:
                brought.setdefault(number, _Crossing(known.nbytes)).add_read(known, trace.settled)
            if number in collection.given | collection.returned:
                written.setdefault(number, _Crossing(known.nbytes)).add_written(known, trace.settled)
    return sum(crossing.nbytes for crossing in (*brought.values(), *written.values()))


class _Crossing:
    """The bytes of a tensor that are read from HBM, or that are written to it.

    Bytes that several cores move count once, and never more than the tensor has.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: set[Part] = set()
        self._moved = 0  # bytes that an index chooses, which count as different

    def add_read(self, known: Tracked, core: Settling) -> None:
        """Add the parts that a core reads without having written them before."""
        assert isinstance(known.uses, HbmUses)
        if core.notes.repeats:  # nothing else is known of iterations that were left out
            self._moved += core.hbm_read[known.name]
        else:
            self._parts |= known.uses.brought_in()
            self._moved += known.uses.gathered_bytes

    def add_written(self, known: Tracked, core: Settling) -> None:
        """Add the parts that a core writes."""
        assert isinstance(known.uses, HbmUses)
        if core.notes.repeats:
            self._moved += core.hbm_written[known.name]
        else:
            self._parts |= known.uses.written()
            self._moved += known.uses.scattered_bytes

    @property
    def nbytes(self) -> int:
        return min(self._most, self._moved + sum(part.nbytes for part in self._parts))


def _cycles(collection: Collection) -> dict[str, float]:
    """Return, by engine, the cycles of those instructions that no other engine could run."""
    plans: dict[int, Plan] = {}
    counts: Counter[int] = Counter()
    for trace in collection.traces:
        for plan, count in trace.settled.notes.plans():
            plans[id(plan)] = plan
            counts[id(plan)] += count
    cycles: dict[str, float] = {}
    for key, plan in plans.items():
        if plan.cycles and not plan.others:
            cycles[plan.engine] = cycles.get(plan.engine, 0.0) + counts[key] * plan.cycles * _filled(plan)
    return cycles


def _filled(plan: Plan) -> float:
    """Return the share of partitions, or of rows and columns of the Tensor engine, that an instruction uses."""
    stationary = plan.operands.get("stationary")
    if stationary is not None:
        rows, *columns = stationary[0]
        return min(1.0, rows / PARTITIONS) * min(1.0, prod(columns) / PARTITIONS)
    return min(1.0, max((shape[0] for shape, _ in plan.operands.values() if shape), default=1) / PARTITIONS)
