# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of the softmax kernels with data, and sizes for them: what the softmax families share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nkilib.experimental.softmax.kind import BackwardTypes, Kind
from nkilib.nki import nl
from tests.experimental.plans.coverage import Limits, Size
from tests.experimental.softmax.row_checks import KERNELS

NUMPY_TYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}
_NAMED_TYPES = {"bfloat16": nl.bfloat16, "float16": nl.float16, "float32": nl.float32}

# Types of x or dy, of y, and of the result: all alike, a result of another type, and mixed inputs.
TYPES = (
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "bfloat16", "bfloat16"),
)


class Launched(NamedTuple):
    """A size, as a plan takes it."""

    kernel: str
    outer: int
    length: int
    inner: int
    types: tuple[str, str, str]
    cores: int

    @classmethod
    def of(cls, size: Size) -> Launched:
        """Make the launch from a size of a table."""
        inputs, saved, result = size["types"].split()
        return cls(size["kernel"], size["outer"], size["length"], size["inner"], (inputs, saved, result), size["cores"])

    @property
    def size(self) -> Size:
        """The size for a table."""
        return {**self._asdict(), "types": " ".join(self.types)}

    @property
    def is_forward(self) -> bool:
        """Whether it is a forward."""
        return self.kernel.endswith("forward")

    @property
    def kind(self) -> Kind:
        """The function that is computed."""
        return Kind.LOG_SOFTMAX if self.kernel.startswith("log") else Kind.SOFTMAX

    @property
    def dtypes(self) -> BackwardTypes:
        """The types of x or dy, of y, and of the result."""
        return BackwardTypes(*(_NAMED_TYPES[name] for name in self.types))

    @property
    def elements(self) -> int:
        """The number of elements of each tensor."""
        return self.outer * self.length * self.inner


@dataclass(frozen=True)
class Grid:
    """Sizes that are combined, each with each.

    Attributes:
        outer, length, inner: sizes around the axis and of it.
        most: elements of a tensor at most.
        types: see :data:`TYPES`.
        cores: the numbers of cores of a launch.
        limits: fields of :class:`PlanLimits`, where a size is for smaller limits.
    """

    outer: tuple[int, ...]
    length: tuple[int, ...]
    inner: tuple[int, ...]
    most: int
    types: tuple[tuple[str, str, str], ...] = TYPES
    cores: tuple[int, ...] = (1, 2)
    limits: tuple[Limits, ...] = field(default=({},))

    def sizes(self) -> Iterator[Launched]:
        """All of them, without the limits."""
        for outer in self.outer:
            for length in self.length:
                for inner in self.inner:
                    if outer * length * inner <= self.most:
                        yield from self._of_shape(outer, length, inner)

    def _of_shape(self, outer: int, length: int, inner: int) -> Iterator[Launched]:
        for kernel in KERNELS:
            for types in self.types:
                for cores in self.cores:
                    yield Launched(kernel, outer, length, inner, types, cores)

    def drawn(self, count: int, seed: int) -> Iterator[tuple[Launched, Limits]]:
        """Yield ``count`` sizes at random, with limits: the same ones for a seed."""
        draw = random.Random(seed)
        result = 0
        while result < count:
            outer, length, inner = draw.choice(self.outer), draw.choice(self.length), draw.choice(self.inner)
            types, cores = draw.choice(self.types), draw.choice(self.cores)
            launched = Launched(draw.choice([*KERNELS]), outer, length, inner, types, cores)
            limits = draw.choice(self.limits)
            if launched.elements <= self.most:
                result += 1
                yield launched, limits


def cost(size: Size) -> float:
    """Elements of all tensors; so few that they would show little come after all others."""
    launched = Launched.of(size)
    shows_little = (launched.elements < 400) + (launched.length < 5) + (launched.outer * launched.inner < 2)
    return launched.elements * (2.0 if launched.is_forward else 3.0) + 1e9 * shows_little


def check(size: Size) -> None:
    """Launch a size, and compare every element with float64; a backward that may, writes over dy too."""
    launched = Launched.of(size)
    inputs = inputs_of(launched)
    result = launch(launched, inputs)
    assert_right(launched, inputs, result)
    if not launched.is_forward and launched.types[0] == launched.types[2]:
        overwritten = [inputs[0].copy(), inputs[1]]
        in_place = launch(launched, overwritten, inplace=True)
        assert in_place.tobytes() == overwritten[0].tobytes() == result.tobytes()


def inputs_of(launched: Launched) -> list[Any]:
    """x; or dy and y, of which y is what the forward gives."""
    kernel = KERNELS[launched.kernel]
    shape = launched.outer, launched.length, launched.inner
    inputs = kernel.inputs(shape, np.float32, seed=launched.length, axis=1)
    return [array.astype(NUMPY_TYPES[name]) for array, name in zip(inputs, launched.types, strict=False)]


def launch(launched: Launched, inputs: list[Any], **options: Any) -> Any:
    """Launch a kernel, with the plan that it takes by itself if there are no options."""
    kernel = KERNELS[launched.kernel].function[launched.cores]
    return kernel(*inputs, 1, dtype=launched.dtypes.grad_x, **options)


def assert_right(launched: Launched, inputs: list[Any], result: Any) -> None:
    """Assert that a result has the type that was asked for, and is within the derived bound of every element.

    Raises:
        AssertionError: another type, or an error above its bound.
    """
    assert result.dtype == NUMPY_TYPES[launched.types[2]]
    worst = KERNELS[launched.kernel].worst_error(result, inputs, 1)
    assert worst <= 1.0, f"the worst error is {worst:.3g} times its bound"
