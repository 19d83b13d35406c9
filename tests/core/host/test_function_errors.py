# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The simulator's activation functions are as near to the reference as bounds take them to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import pytest

from nkilib.core.host.function_errors import CORRECTLY_ROUNDED, SIMULATED, FunctionErrors
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT
from nkilib.simulator.numerics.activations import ACTIVATIONS

Numbers = np.ndarray
# A prime, so that all last digits are among the sampled numbers.
_SAMPLED, _CHUNK = 10007, 1 << 22


@dataclass(frozen=True)
class Function:
    """An activation function in float64, and where it is looked at.

    Attributes:
        exact: the function in float64.
        least, most: magnitudes of arguments: of documented ranges those that are computed with, else of normal results.
        is_signed: negative arguments, too.
    """

    exact: Callable[[Numbers], Numbers]
    least: float
    most: float
    is_signed: bool = False

    def worst(self, name: str, step: int) -> float:
        """The largest error in u of the result, of each ``step``-th float32."""
        first, last = (int(np.float32(array).view(np.uint32)) for array in (self.least, self.most))
        result = 0.0
        for start in range(first, last + 1, step * _CHUNK):
            bits = np.arange(start, min(start + step * _CHUNK, last + 1), step, dtype=np.uint32)
            for sign in (1.0, -1.0) if self.is_signed else (1.0,):
                result = max(result, self._worst_of(name, np.float32(sign) * bits.view(np.float32)))
        return result

    def _worst_of(self, name: str, x: Numbers) -> float:
        came = np.empty_like(x)
        ACTIVATIONS[name](x.copy(), came)
        exact = self.exact(x.astype(np.float64))
        is_normal = np.abs(exact) >= SMALLEST_NORMAL
        errors = np.abs(came - exact)[is_normal] / (UNIT * np.abs(exact[is_normal]))
        return float(errors.max(initial=0.0))


FUNCTIONS: Final = {
    "exp": Function(np.exp, 2.0**-26, 87.3, is_signed=True),
    "log": Function(np.log, 2.0**-64, 2.0**64),
    "reciprocal": Function(lambda x: 1.0 / x, 2.0**-42, 2.0**42, is_signed=True),
    "rsqrt": Function(lambda x: 1.0 / np.sqrt(x), 2.0**-87, 2.0**97),
    "sigmoid": Function(lambda x: np.exp(-np.logaddexp(0.0, -x)), 2.0**-26, 87.3, is_signed=True),
    "softplus": Function(lambda x: np.logaddexp(0.0, x), 2.0**-26, 87.3, is_signed=True),
    "sqrt": Function(np.sqrt, 2.0**-116, 2.0**118),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def test_every_function_is_looked_at() -> None:
    assert [field.name for field in fields(FunctionErrors)] == list(FUNCTIONS)


@every_function
def test_a_sample_of_all_numbers(name: str) -> None:
    allowed = getattr(SIMULATED, name) + 1e-6
    result = FUNCTIONS[name].worst(name, _SAMPLED)
    assert 0.9 * CORRECTLY_ROUNDED <= result <= allowed


@pytest.mark.sweep
@every_function
def test_all_numbers(name: str) -> None:
    """Check every float32 argument instead of a sample, which takes some minutes."""
    assert FUNCTIONS[name].worst(name, 1) <= getattr(SIMULATED, name) + 1e-6
