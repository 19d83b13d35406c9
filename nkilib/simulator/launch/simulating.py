# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.simulate``: ``nki.simulate`` with options that AWS's does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .kernel import Kernel
from .kernel import simulate as simulated
from .settings import Skipping
from .skipping import AskedTrips, checked_trips


def simulate(
    kernel: Kernel | Callable[..., Any], *, skip_arithmetic: bool = False, trips: AskedTrips | None = None
) -> Kernel:
    """A callable that runs ``kernel`` (from ``nki.jit``, ``kernel[n]``, or a plain function) on the CPU.

    As ``nki.simulate``, which has no options: it takes numpy arrays or CPU torch tensors, returns results in kind, and
    updates inputs that the kernel writes.

    With ``skip_arithmetic`` it checks what every launch checks, at the full sizes, and computes only the values on
    which an address, the bound of a loop or a check depends. It returns an :class:`Uncomputed` in place of each tensor
    and writes no argument; a :func:`~nkilib.simulator.spec` stands for an argument whose values nothing needs.

    Args:
        kernel: what to run.
        skip_arithmetic: whether to leave out values that nothing depends on.
        trips: with ``skip_arithmetic``, how often loops run whose bounds depend on such values: a number, numbers by
            the name of the function that is the loop's body (or by the line, ``"file.py:12"``), or ``"none"`` for 0.
            None computes these bounds.

    Raises:
        TypeError: if ``trips`` is nothing of these.
        ValueError: if it is negative, or comes without ``skip_arithmetic``.
    """
    made = simulated(kernel)
    if not skip_arithmetic:
        if trips is not None:
            raise ValueError(f"simulate: trips goes with skip_arithmetic=True only, got trips={trips!r} without it")
        return made
    settings = replace(made.settings, skipping=Skipping(checked_trips(trips)))
    return Kernel(made.func, made.cores, made.schedule, settings)
