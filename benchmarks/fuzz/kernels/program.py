# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A random kernel as the lines of its body (:class:`Program`) and its arguments: what is drawn, run, printed and
shrunk.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.nki import nisa, nki, nl

Array = npt.NDArray[Any]

NUMPY_TYPES: Final[dict[str, Any]] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "int32": np.int32,
    "uint32": np.uint32,
    "uint8": np.uint8,
}
# Names that stand in a body.
_NAMES: Final[dict[str, Any]] = {"nisa": nisa, "nl": nl}


@dataclass(frozen=True)
class Argument:
    """An array that a kernel is given.

    Attributes:
        name: in the body.
        shape: rows and columns.
        dtype: a key of ``NUMPY_TYPES``.
        below: its integers are at least 0 and less than this.
    """

    name: str
    shape: tuple[int, int]
    dtype: str
    below: int = 2

    def array(self, rng: np.random.Generator) -> Array:
        """One of normal numbers, or of integers."""
        if self.dtype in ("int32", "uint32", "uint8"):
            return rng.integers(0, self.below, self.shape).astype(NUMPY_TYPES[self.dtype])
        return (2 * rng.standard_normal(self.shape, np.float32)).astype(NUMPY_TYPES[self.dtype])


@dataclass(frozen=True)
class Program:
    """A kernel.

    Attributes:
        seed: the seed of its draw and of its data.
        sizes: name of the sizes that it was drawn with.
        cores: the number of cores of its launch.
        arguments: the arguments that it gets.
        lines: the lines of its body.
        results: names that it returns.
    """

    seed: int
    sizes: str
    cores: int
    arguments: tuple[Argument, ...]
    lines: tuple[str, ...] = ()
    results: tuple[str, ...] = field(default=())

    @property
    def source(self) -> str:
        """The kernel in Python."""
        names = ", ".join(argument.name for argument in self.arguments)
        returned = f"return ({''.join(f'{name}, ' for name in self.results)})"
        return "\n    ".join([f"def kernel({names}):", *self.lines, returned]) + "\n"

    def kernel(self) -> Any:
        """The jitted kernel, for the number of cores of the program."""
        return nki.jit(function_of(self.source))[self.cores]

    def arrays(self) -> list[Array]:
        """Return the arguments of the kernel, which are the same at every call."""
        rng = np.random.default_rng((self.seed, 1))
        return [argument.array(rng) for argument in self.arguments]

    def with_lines(self, lines: tuple[str, ...]) -> Program:
        """The same kernel of other lines; what it returns is what of its results they still make."""
        made = {line.split(" = ")[0] for line in lines if " = " in line}
        return replace(self, lines=lines, results=tuple(name for name in self.results if name in made))

    def __str__(self) -> str:
        made = [f"{argument.name} {argument.dtype} {list(argument.shape)}" for argument in self.arguments]
        return f"seed {self.seed}, {self.sizes} sizes, {self.cores} core(s): {', '.join(made)}\n{self.source}"


def function_of(source: str) -> Callable[..., Any]:
    """The function ``kernel`` of a source, whose lines errors can show."""
    file = f"<kernel {hash(source):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = dict(_NAMES)
    exec(compile(source, file, "exec"), names)
    made: Callable[..., Any] = names["kernel"]
    return made
