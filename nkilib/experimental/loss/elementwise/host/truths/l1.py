"""Absolute error: the difference rounds once, u / 2 of itself. A sign is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.truth import Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class L1Truth:
    """``torch.nn.functional.l1_loss(input.double(), target.double())``."""

    def value(self, tensors: Tensors) -> Exact:
        """|x - t|."""
        found = np.abs(tensors[INPUT] - tensors[TARGET])
        return Exact(found, 0.5 * UNIT * found)

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """The sign of x - t, 0 of a NaN, and its negative."""
        sign = np.nan_to_num(np.sign(tensors[INPUT] - tensors[TARGET]))
        return {INPUT: Exact(sign, np.zeros_like(sign)), TARGET: Exact(-sign, np.zeros_like(sign))}
