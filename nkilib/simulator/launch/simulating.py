# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The function ``nkilib.simulator.simulate``: ``nki.simulate`` with the additional option ``skip_arithmetic``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from ..machine.loops import Stated, check_stated
from .kernel import Kernel
from .kernel import simulate as simulated
from .settings import Skipping

# The type of ``simulate(trips=)``.
_AskedTrips = Stated | Literal["none"]


def _checked_trips(asked: Any) -> Stated | None:
    """Check ``asked``, the argument ``trips`` of :func:`simulate`, and return it in the form that launches take.

    ``"none"`` becomes 0; a mapping is copied.

    Raises:
        TypeError, ValueError: the argument is not valid.
    """
    if asked is None or asked == "none":
        return None if asked is None else 0
    check_stated("simulate", "'none'", asked)
    return dict(asked) if isinstance(asked, Mapping) else int(asked)


def simulate(
    kernel: Kernel | Callable[..., Any], *, skip_arithmetic: bool = False, trips: _AskedTrips | None = None
) -> Kernel:
    """Return a kernel that runs on the CPU.

    A call takes numpy arrays or CPU torch tensors, returns results of the same library, and updates inputs that the
    kernel writes, as with ``nki.simulate``, which has no options.

    With ``skip_arithmetic`` a call makes every check of a launch, at the full sizes, and computes only values on which
    an address, the bound of a loop or a check depends. The call returns an :class:`Uncomputed` in place of each tensor
    and writes no argument; a :func:`~nkilib.simulator.spec` may replace an argument whose values are not needed.

    Args:
        kernel: a kernel from ``nki.jit``, ``kernel[n]``, or a plain function.
        skip_arithmetic: whether to compute only the values that checks, addresses and bounds of loops need.
        trips: with ``skip_arithmetic``, the iteration counts of loops whose bounds depend on values that are not
            computed: a number; a mapping from the name of the loop's body function (or the line, ``"file.py:12"``) to a
            number; or ``"none"`` for 0. None: these bounds are computed.

    Raises:
        TypeError: ``trips`` has another form.
        ValueError: ``trips`` is negative, or is passed without ``skip_arithmetic``.
    """
    launchable = simulated(kernel)
    if not skip_arithmetic:
        if trips is not None:
            raise ValueError(f"simulate: trips goes with skip_arithmetic=True only, got trips={trips!r} without it")
        return launchable
    settings = replace(launchable.settings, skipping=Skipping(_checked_trips(trips)))
    return Kernel(launchable.func, launchable.cores, launchable.schedule, settings)
