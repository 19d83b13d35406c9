"""Absolute error: the difference rounds once, u / 2 of itself. A sign is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class L1Truth:
    """``torch.nn.functional.l1_loss(input.double(), target.double())``."""

    stated: ClassVar[TermError] = term_errors.L1

    def value(self, tensors: Tensors) -> Derived:
        """|x - t|."""
        found = np.abs(tensors[INPUT] - tensors[TARGET])
        return Derived.of_units(found, (), 0.5 * found)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """The sign of x - t, 0 of a NaN, and its negative."""
        sign = np.nan_to_num(np.sign(tensors[INPUT] - tensors[TARGET]))
        return {INPUT: Exact(sign, np.zeros_like(sign)), TARGET: Exact(-sign, np.zeros_like(sign))}
