"""Squared error: the difference d rounds once, u / 2 of itself; its square twice that, and u / 2 of its own.

|error| <= 1.5 u d^2        of a derivative 2 d: u |d|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class MseTruth:
    """``torch.nn.functional.mse_loss(input.double(), target.double())``."""

    stated: ClassVar[TermError] = term_errors.MSE

    def value(self, tensors: Tensors) -> Derived:
        """(x - t)^2."""
        square = (tensors[INPUT] - tensors[TARGET]) ** 2
        return Derived.of_units(square, (), 1.5 * square)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """2 (x - t), and its negative."""
        slope = 2.0 * (tensors[INPUT] - tensors[TARGET])
        error = 0.5 * UNIT * np.abs(slope)
        return {INPUT: Exact(slope, error), TARGET: Exact(-slope, error)}
