# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A timed launch, described by the shapes of its arrays, which is all that the model needs."""

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
    """An array of a launch: its values do not affect the time, as long as they are valid.

    Attributes:
        sizes: the sizes of its dimensions.
        dtype: ``"bfloat16"``, ``"float32"`` or ``"int32"``.
    """

    sizes: tuple[int, ...]
    dtype: str

    def array(self) -> Array:
        """Return an array of ones; integers are classes, and 1 is a valid one."""
        return np.ones(self.sizes, _NUMPY.get(self.dtype, self.dtype))


@dataclass(frozen=True)
class Timed:
    """A launch that is timed.

    Attributes:
        name: a word that is unique among the launches of a figure.
        kernel: a kernel from ``nki.jit``.
        shapes: the shapes of its arrays, by name.
        constants: its other arguments.
        cores: the number of cores of the launch.
    """

    name: str
    kernel: Any
    shapes: Mapping[str, Shape]
    constants: Mapping[str, Any] = field(default_factory=dict)
    cores: int = 1

    def arrays(self) -> dict[str, Array]:
        """Return its arrays, by name."""
        return {name: shape.array() for name, shape in self.shapes.items()}

    def launch(self, arrays: Mapping[str, Array]) -> None:
        """Run the launch to its end: its results are numpy arrays."""
        on_cores(self.kernel, self.cores)(**arrays, **self.constants)

    def modelled_seconds(self) -> float:
        """Return the time in seconds by the performance model; in the simulator only."""
        from nkilib.simulator import profile, spec

        arguments: dict[str, Any] = {name: spec(shape.sizes, shape.dtype) for name, shape in self.shapes.items()}
        return profile(self.kernel[self.cores], **arguments, **self.constants).time_us * _US
