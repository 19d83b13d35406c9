# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The errors of float32 activation functions, in u = 2^-23 of their results. Never traced.

A correctly rounded function is off by u / 2. Nobody has published the errors of the hardware's functions. Among the
functions listed below, only ``exp`` and ``log`` are further off in the simulator; a function that is not listed may be
too (``tanh`` is off by up to 0.92 u with AVX2, and 1.3 u without). ``exp`` and ``log`` are numpy's: its sources
document 2.52 and 3.83 units of the last place, and such a unit is between u / 2 and u of a number. Over all float32
numbers with normal results, on CPUs with AVX2 and with AVX512, ``exp`` is off by at most 1.784 u (2.54 units of the
last place, at -62.0295), and ``log``, on the documented range from 2^-64 to 2^64, by at most 2.289 u (3.83 units, at
0.7464124); without AVX2 by 0.5 u and 0.66 u. Error bounds use the larger numbers, so they hold on every CPU, while the
last bits of results differ between CPUs (docs/reference/simulator.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CORRECTLY_ROUNDED: Final = 0.5


@dataclass(frozen=True)
class FunctionErrors:
    """The largest error of each activation function, in u of its result.

    Attributes:
        exp, log, reciprocal, rsqrt, sigmoid, softplus, sqrt: named as in ``nki.language``.
    """

    exp: float = CORRECTLY_ROUNDED
    log: float = CORRECTLY_ROUNDED
    reciprocal: float = CORRECTLY_ROUNDED
    rsqrt: float = CORRECTLY_ROUNDED
    sigmoid: float = CORRECTLY_ROUNDED
    softplus: float = CORRECTLY_ROUNDED
    sqrt: float = CORRECTLY_ROUNDED

    def further(self, function: str) -> float:
        """Return the error of a function beyond correct rounding, in u."""
        error: float = getattr(self, function)
        return error - CORRECTLY_ROUNDED


# All of them rounded correctly.
CORRECT: Final = FunctionErrors()
# The errors of the simulator's functions, with which tests check the kernels.
SIMULATED: Final = FunctionErrors(exp=1.8, log=2.3)
# The errors that verification allows for hardware, where they were never measured.
GRANTED: Final = FunctionErrors(exp=3.0, log=4.0, reciprocal=4.0, rsqrt=4.0, sigmoid=4.0, softplus=4.0, sqrt=2.0)
