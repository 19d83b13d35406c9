"""What a kernel works on, stated beside the kernel: profiles hold its modelled time against what the hardware needs.

It imports nothing of this library, so that kernels state their work on a device too, where no simulator is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Work:
    """Demands that do not depend on how a kernel meets them.

    Attributes:
        hbm_bytes: bytes that must cross HBM, in either direction.
        exponentials: elements of which the exponential (or another activation function) is needed.
        maxima: elements that must pass through a maximum.
        multiply_adds: scalar multiplications with an addition, of a matrix product.
        dtype: NKI type of the elements on chip, such as ``nl.bfloat16``, or its name.
    """

    hbm_bytes: int
    exponentials: int = 0
    maxima: int = 0
    multiply_adds: int = 0
    dtype: str = "float32"


# A function with a kernel's parameters, by name, that returns the kernel's work.
StatesWork = Callable[..., Work]

_STATED: WeakKeyDictionary[Callable[..., Any], StatesWork] = WeakKeyDictionary()


def states_work(work: StatesWork) -> Callable[[Function], Function]:
    """State what a kernel function works on, so that ``nkilib.simulator.profile`` knows its bound.

    The function itself stays as it is.

    Example::

        @nki.jit
        @states_work(lambda x, **_: Work(hbm_bytes=2 * x.size * x.dtype.itemsize))
        def double(x): ...
    """

    def state(function: Function) -> Function:
        _STATED[function] = work
        return function

    return state


def stated_work(function: Callable[..., Any]) -> StatesWork | None:
    """What was stated of a kernel function, or of what it wraps; None if nothing was."""
    try:
        stated = _STATED.get(function)
    except TypeError:  # a callable without a hash, or that no weak reference can point to
        return None
    wrapped: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    return stated if stated is not None or wrapped is None else stated_work(wrapped)
