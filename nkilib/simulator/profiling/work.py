# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The least time in which a generation of the hardware can do a piece of work.

The bound comes from hardware constants alone, never from the instructions that a kernel chose. Modelled, not measured.
"""

from __future__ import annotations

from ...base.work import Work
from ..hardware.generation import Generation
from ..hardware.limits import PARTITIONS
from ..terms import dtypes as dt
from ..terms.dtypes import as_dtype
from ..terms.enums import Engine, nc_version
from ..timing.costs import EXPONENTIAL_BF16_CYCLES, FAST_TYPES
from ..timing.parameters import ModelParameters

_NS_PER_US = 1000.0


def bounds_us(work: Work, cores: int, generation: Generation, parameters: ModelParameters) -> dict[str, float]:
    """Return the least time, in microseconds, that each engine needs for its part of the work.

    The work is spread evenly over cores and partitions.
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
            bounds[name] = max(bounds.get(name, 0.0), nanoseconds / _NS_PER_US)
    return bounds
