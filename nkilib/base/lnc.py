# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""On how many cores a kernel is launched: the one place that decides it, for simulator, wrappers and ``doctor`` alike.

A logical NeuronCore (LNC) is one physical core or two. A kernel takes its size from the launch grid, ``kernel[2]``, or
from ``NEURON_LOGICAL_NC_CONFIG``, or else is made for one core. The Neuron compiler takes it from ``--lnc`` in
``NEURON_CC_FLAGS``, or from the variable, or else compiles for two on trn2 and later. NKI 0.7 is the first to compare
them, when all is compiled: error NCC_EVRF066. Here a disagreement is refused before the launch.

It imports nothing of this library, so that all of it can ask.

Source: ``nki/api/generated/nki.jit``, ``nki/get-started/about/lnc`` and ``compiler/error-codes/EVRF066`` of Neuron
SDK 2.33.1, ``about-neuron/arch/neuron-features/logical-neuroncore-config``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Final

__all__ = [
    "COMPILER_DEFAULT",
    "FLAGS",
    "NKI_DEFAULT",
    "SIZES",
    "VARIABLE",
    "Choice",
    "CoresDisagreeError",
    "explanation",
    "launch_cores",
    "library_grid",
    "library_launch",
    "of_compiler",
    "of_flags",
    "of_kernel",
    "of_variable",
]

VARIABLE: Final = "NEURON_LOGICAL_NC_CONFIG"
FLAGS: Final = "NEURON_CC_FLAGS"
# A logical NeuronCore is one physical core or two.
SIZES: Final = (1, 2)
# What NKI takes where neither a grid nor the variable says anything.
NKI_DEFAULT: Final = 1
# What the compiler takes on trn2 and later where neither its flags nor the variable say anything.
COMPILER_DEFAULT: Final = 2

# A process has one value of the compiler's flags, seldom more.
_MOST_FLAGS = 16

# The spellings of one option (neuronx-cc's command line reference, and EVRF066).
_OPTIONS: Final = ("--lnc", "-lnc", "--logical-nc-config")


class CoresDisagreeError(ValueError):
    """The kernel would be made for another number of cores than the compiler, or the runtime, works with."""


@dataclass(frozen=True)
class Choice:
    """A number of cores, and what says so.

    Attributes:
        cores: of a logical NeuronCore, 1 or 2.
        source: for messages.
    """

    cores: int
    source: str

    def __str__(self) -> str:
        return f"{self.source} means {self.cores} core{'s' if self.cores > 1 else ''}"


def of_variable() -> Choice | None:
    """What ``NEURON_LOGICAL_NC_CONFIG`` says; None where it is unset or empty.

    Raises:
        ValueError: if it is neither 1 nor 2.
    """
    value = os.environ.get(VARIABLE, "")
    if value == "":
        return None
    cores = _size(VARIABLE, value, "set it to what the Neuron runtime uses, or unset it")
    return Choice(cores, f"{VARIABLE}={cores}")


def of_flags() -> Choice | None:
    """What ``--lnc`` in ``NEURON_CC_FLAGS`` says, the last one where it stands twice; None where it is not there.

    Raises:
        ValueError: if it is neither 1 nor 2.
    """
    return _of_flags(os.environ.get(FLAGS, ""))


@lru_cache(maxsize=_MOST_FLAGS)
def _of_flags(flags: str) -> Choice | None:
    found: Choice | None = None
    for option, value in _options(flags):
        cores = _size(f"{option} in {FLAGS}", value, f"take it out, and set {VARIABLE}")
        found = Choice(cores, f"{option}={cores} in {FLAGS}")
    return found


@dataclass(frozen=True)
class Said:
    """What the environment says of the number of cores, read at one moment.

    Attributes:
        variable: what ``NEURON_LOGICAL_NC_CONFIG`` says; None where it is unset or empty.
        flags: what ``--lnc`` in ``NEURON_CC_FLAGS`` says; None where it is not there.
    """

    variable: Choice | None
    flags: Choice | None

    @classmethod
    def now(cls) -> Said:
        """What it says now.

        Raises:
            ValueError: if the variable, or the compiler's flag, is neither 1 nor 2.
        """
        return cls(of_variable(), of_flags())

    def of_kernel(self, grid: int | None) -> Choice:
        """What NKI makes a kernel for that is launched with ``grid``; None is a launch without brackets."""
        if grid is not None:
            return Choice(grid, f"the grid [{grid}]")
        return self.variable or Choice(NKI_DEFAULT, "the default of NKI 0.7")

    def of_compiler(self, default: int | None = COMPILER_DEFAULT) -> Choice | None:
        """What the Neuron compiler works with; ``default`` is what it takes on the target where nothing is said."""
        said = self.flags or self.variable
        if said is not None or default is None:
            return said
        return Choice(default, "the compiler's default")

    def launch_cores(self, kernel: str, grid: int | None, compiler_default: int | None = COMPILER_DEFAULT) -> int:
        """The cores of a launch; as the function :func:`launch_cores`.

        Raises:
            CoresDisagreeError: naming both sides and what to do.
        """
        chosen = self.of_kernel(grid)
        for other in (self.variable, self.of_compiler(compiler_default)):
            if other is not None and other.cores != chosen.cores:
                launch = kernel if grid is None else f"{kernel}[{grid}]"
                raise CoresDisagreeError(
                    f"{launch}: {chosen}, and {other}: kernel and compiler must work with the same number (error "
                    f"NCC_EVRF066 otherwise); {self._cure(grid)}"
                )
        return chosen.cores

    def library_grid(self) -> int | None:
        """The grid with which this library launches its own kernels; None: without brackets."""
        if self.variable is not None:
            return None
        said = self.of_compiler()
        return None if said is None else said.cores

    def _cure(self, grid: int | None) -> str:
        """What makes all sides agree: on the grid, else on what somebody has said, else on what the compiler takes."""
        variable, flags = self.variable, self.flags
        said = variable or flags
        wanted = grid if grid is not None else COMPILER_DEFAULT if said is None else said.cores
        steps = [] if variable is not None and variable.cores == wanted else [f"set {VARIABLE}={wanted}"]
        if flags is not None and flags.cores != wanted:
            steps.append(f"take {flags.source.replace(' in ', ' out of ')}")
        has_one_said = flags is None or variable is None or flags.cores == variable.cores
        agree_without = variable is not None and variable.cores != grid and has_one_said
        return " and ".join(steps) + (", or leave the brackets out" if grid is not None and agree_without else "")


def of_kernel(grid: int | None) -> Choice:
    """What NKI makes a kernel for that is launched with ``grid``; None is a launch without brackets.

    Raises:
        ValueError: if the variable is neither 1 nor 2.
    """
    return Said(of_variable() if grid is None else None, None).of_kernel(grid)


def of_compiler(default: int | None = COMPILER_DEFAULT) -> Choice | None:
    """What the Neuron compiler works with; ``default`` is what it takes on the target where nothing is said.

    Raises:
        ValueError: if its flag or the variable is neither 1 nor 2.
    """
    flags = of_flags()
    return Said(None if flags is not None else of_variable(), flags).of_compiler(default)


def launch_cores(kernel: str, grid: int | None, compiler_default: int | None = COMPILER_DEFAULT) -> int:
    """The cores of a launch, on which grid, variable and compiler agree.

    Args:
        kernel: its name, for messages.
        grid: n of ``kernel[n](...)``; None without brackets.
        compiler_default: what the compiler takes where nothing is said, on trn2 and later 2; None where no compiler
            takes part, so that only what somebody has said must agree.

    Raises:
        CoresDisagreeError: naming both sides and what to do.
        ValueError: if the variable, or the compiler's flag, is neither 1 nor 2.
    """
    return Said.now().launch_cores(kernel, grid, compiler_default)


def library_grid() -> int | None:
    """The grid with which this library launches its own kernels: none where the variable says it, else the compiler's.

    Raises:
        ValueError: if the variable, or the compiler's flag, is neither 1 nor 2.
    """
    variable = of_variable()
    return Said(variable, of_flags() if variable is None else None).library_grid()


def library_launch(name: str, kernel: Any) -> Any:
    """``kernel``, one of this library's, as a wrapper is to call it: without brackets wherever that means the same.

    Args:
        name: what is launched, for messages.
        kernel: from ``nki.jit``.

    Raises:
        CoresDisagreeError: if the variable and the compiler's flag disagree.
        ValueError: if one of them is neither 1 nor 2.
    """
    said = Said.now()
    grid = said.library_grid()
    said.launch_cores(name, grid)
    return kernel if grid is None else kernel[grid]


def explanation() -> str:
    """What the environment decides for launches with brackets and without, in one line.

    Raises:
        CoresDisagreeError: if the variable and the compiler's flag disagree.
        ValueError: if one of them is neither 1 nor 2.
    """
    bare, grid = of_kernel(None), library_grid()
    launch_cores("kernel(...)", grid)
    if grid is None:
        return f"{bare.cores}, as {bare.source} says, with brackets and without"
    source = (of_compiler() or bare).source
    if grid == bare.cores:
        return f"{grid}, as {source} says, and without brackets {bare.source}"
    return (
        f"nkilib's wrappers launch on {grid} ({source}), kernel(...) without brackets is made for {bare.cores} "
        f"({bare.source}), which such a compiler refuses (NCC_EVRF066): set {VARIABLE} to have both alike"
    )


def _options(flags: str) -> Iterator[tuple[str, str]]:
    """Each option of the size in the compiler's flags, with its value: ``--lnc=2``, ``--lnc 2`` or ``-lnc 2``."""
    try:
        words = shlex.split(flags)
    except ValueError:  # a quotation mark without its other half: the compiler has its own opinion
        words = flags.split()
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, is_joined, value = word.partition("=")
        if option in _OPTIONS:
            yield option, value if is_joined else following


def _size(what: str, value: str, cure: str) -> int:
    if value not in map(str, SIZES):
        raise ValueError(
            f"{what} must be {' or '.join(map(str, SIZES))}, the physical cores of a logical NeuronCore, got "
            f"{value!r}; {cure}"
        )
    return int(value)
