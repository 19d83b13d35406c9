"""What a piece of work asks of any hardware, and the time below which a generation cannot do it.

The bound comes from hardware constants alone, never from the instructions that a kernel chose. Modelled, not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..target.generation import Generation
from ..target.limits import PARTITIONS
from ..terms import dtypes as dt
from ..terms.dtypes import DType
from ..terms.enums import engine as engines
from ..terms.enums import nc_version
from ..timing.costs import EXPONENTIAL_BF16_CYCLES, FAST_TYPES
from ..timing.parameters import ModelParameters

_NS_PER_US = 1000.0
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Work:
    """Demands that do not depend on how a kernel meets them.

    Attributes:
        hbm_bytes: bytes that must cross HBM, in either direction.
        exponentials: elements of which the exponential (or another activation function) is needed.
        maxima: elements that must pass through a maximum.
        multiply_adds: scalar multiplications with an addition, of a matrix product.
        dtype: type of the elements on chip.
    """

    hbm_bytes: int
    exponentials: int = 0
    maxima: int = 0
    multiply_adds: int = 0
    dtype: DType = dt.float32


class StatesWork(Protocol):
    """A function with a kernel's parameters, by name, that returns the kernel's work."""

    def __call__(self, **parameters: Any) -> Work: ...


def states_work(work: StatesWork) -> Callable[[Function], Function]:
    """Attach to a kernel function what it works on, so that ``profile`` knows its bound.

    Example::

        @nki.jit
        @states_work(lambda x, **_: Work(hbm_bytes=2 * x.size * x.dtype.itemsize))
        def double(x): ...
    """

    def attach(function: Function) -> Function:
        function.__dict__["work"] = work
        return function

    return attach


def bounds_us(work: Work, cores: int, generation: Generation, parameters: ModelParameters) -> dict[str, float]:
    """The least time that each engine needs for its demand, all of it spread evenly over cores and partitions."""
    timing = generation.timing
    lanes = cores * PARTITIONS
    scalar = timing.clock_ghz[engines.scalar]
    scalar *= timing.scalar_bf16_per_cycle if work.dtype == dt.bfloat16 else 1
    vector = timing.clock_ghz[engines.vector]
    exponentials = {"scalar": work.exponentials / lanes / scalar}
    if generation.version.value >= nc_version.gen4.value:  # has nisa.exponential
        cycles = EXPONENTIAL_BF16_CYCLES if work.dtype == dt.bfloat16 else parameters.fp32_exponential_cycles
        exponentials["vector"] = work.exponentials / lanes * cycles / vector
    fastest = min(exponentials, key=lambda name: exponentials[name])
    halves = parameters.halves_bf16_max and work.dtype in FAST_TYPES
    maxima = work.maxima / lanes * (0.5 if halves else 1.0) / vector
    passes = 4 if work.dtype == dt.float32 else 1
    products = work.multiply_adds * passes / (cores * PARTITIONS * PARTITIONS) / timing.clock_ghz[engines.tensor]
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
