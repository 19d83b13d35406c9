# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What is timed: a launch, described by the shapes of its arrays, which is all that the model needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np

from nkilib.verify.launching import on_cores
from nkilib.verify.observation import Array

_NUMPY: Final = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
_US: Final = 1e-6


@dataclass(frozen=True)
class Shape:
    """An array of a launch: its values do not matter to the time, as long as they are valid.

    Attributes:
        sizes: of its dimensions.
        dtype: ``"bfloat16"``, ``"float32"`` or ``"int32"``.
    """

    sizes: tuple[int, ...]
    dtype: str

    def array(self) -> Array:
        """Ones; integers are classes, and 1 is one."""
        return np.ones(self.sizes, _NUMPY.get(self.dtype, self.dtype))


@dataclass(frozen=True)
class Timed:
    """A launch.

    Attributes:
        name: a word, of the launches of a figure.
        kernel: from ``nki.jit``.
        shapes: of its arrays, by name.
        constants: its other arguments.
        cores: of the launch.
    """

    name: str
    kernel: Any
    shapes: Mapping[str, Shape]
    constants: Mapping[str, Any] = field(default_factory=dict)
    cores: int = 1

    def arrays(self) -> dict[str, Array]:
        """Its arrays, by name."""
        return {name: shape.array() for name, shape in self.shapes.items()}

    def launch(self, arrays: Mapping[str, Array]) -> None:
        """Run it, to the end: its results are numpy arrays."""
        on_cores(self.kernel, self.cores)(**arrays, **self.constants)

    def modelled_seconds(self) -> float:
        """What the model says; in the simulator only."""
        from nkilib.simulator import profile, spec

        given: dict[str, Any] = {name: spec(shape.sizes, shape.dtype) for name, shape in self.shapes.items()}
        return profile(self.kernel[self.cores], **given, **self.constants).time_us * _US
