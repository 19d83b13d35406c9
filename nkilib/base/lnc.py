# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The number of cores of a launch. The simulator, the wrappers and ``doctor`` all get the number from this module.

- :func:`of_variable` and :func:`of_flags` read the settings of the environment, :class:`LncSettings` holds them.
- :func:`of_kernel`, :func:`of_compiler` and :func:`launch_cores` return the number of cores of any launch.
- :func:`library_grid` and :func:`library_launch` choose the cores for this library's kernels, and :func:`explanation`
  describes the cores of launches with brackets, ``kernel[n](...)``, and without, ``kernel(...)``.

A logical NeuronCore (LNC) is one physical core or two. Two programs choose the number of cores; the first setting that
exists decides:

- NKI: the launch grid, ``kernel[2]``; the variable ``NEURON_LOGICAL_NC_CONFIG``; one core.
- the Neuron compiler: ``--lnc`` in ``NEURON_CC_FLAGS``; the same variable; two cores on trn2 and later.

NKI 0.7 compares the two numbers after everything is compiled (error NCC_EVRF066), earlier releases never. This module
raises an error before the launch if they disagree.

This module imports nothing of this library, so that every part of the library can use it.

Source: ``nki/api/generated/nki.jit``, ``nki/get-started/about/lnc`` and ``compiler/error-codes/EVRF066`` of Neuron SDK
2.33.1, ``about-neuron/arch/neuron-features/logical-neuroncore-config``.
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
# NKI's default, without a grid and without the variable.
NKI_DEFAULT: Final = 1
# The compiler's default on trn2 and later, without its flag and without the variable.
COMPILER_DEFAULT: Final = 2

# A process has one value of the compiler's flags, seldom more.
_MOST_FLAGS = 16
# Launches that are remembered: one for each operator, seldom for more than one value of the environment.
_MOST_LAUNCHES = 256

# The spellings of one option (neuronx-cc's command line reference, and EVRF066).
_OPTIONS: Final = ("--lnc", "-lnc", "--logical-nc-config")


class CoresDisagreeError(ValueError):
    """Raised if NKI would make a kernel for another number of cores than the compiler or the runtime uses."""


@dataclass(frozen=True)
class Choice:
    """A number of cores, and the setting that determines it.

    Attributes:
        cores: the number of cores of a logical NeuronCore, 1 or 2.
        source: the setting, as a text for messages.
    """

    cores: int
    source: str

    def __str__(self) -> str:
        return f"{self.source} means {self.cores} core{'s' if self.cores > 1 else ''}"


def _size(name: str, value: str, cure: str) -> int:
    if value not in map(str, SIZES):
        raise ValueError(
            f"{name} must be {' or '.join(map(str, SIZES))}, the physical cores of a logical NeuronCore, got "
            f"{value!r}; {cure}"
        )
    return int(value)


def _of_variable(value: str) -> Choice | None:
    if value == "":
        return None
    cores = _size(VARIABLE, value, "set it to what the Neuron runtime uses, or unset it")
    return Choice(cores, f"{VARIABLE}={cores}")


def of_variable() -> Choice | None:
    """Return the choice that ``NEURON_LOGICAL_NC_CONFIG`` makes; None where the variable is unset or empty.

    Raises:
        ValueError: if the variable is neither 1 nor 2.
    """
    return _of_variable(os.environ.get(VARIABLE, ""))


def _options(flags: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each compiler option that sets the number of cores: ``--lnc=2``, ``--lnc 2`` or ``-lnc
    2``.
    """
    try:
        words = shlex.split(flags)
    except ValueError:  # a quotation mark without its other half: the compiler has its own opinion
        words = flags.split()
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, is_joined, value = word.partition("=")
        if option in _OPTIONS:
            yield option, value if is_joined else following


@lru_cache(maxsize=_MOST_FLAGS)
def _of_flags(flags: str) -> Choice | None:
    choice: Choice | None = None
    for option, value in _options(flags):
        cores = _size(f"{option} in {FLAGS}", value, f"take it out, and set {VARIABLE}")
        choice = Choice(cores, f"{option}={cores} in {FLAGS}")
    return choice


def of_flags() -> Choice | None:
    """Return the choice that the last ``--lnc`` in ``NEURON_CC_FLAGS`` makes; None without that option.

    Raises:
        ValueError: if the option's value is neither 1 nor 2.
    """
    return _of_flags(os.environ.get(FLAGS, ""))


@dataclass(frozen=True)
class LncSettings:
    """The number of cores that the environment variables set, read once.

    Attributes:
        variable: the choice of ``NEURON_LOGICAL_NC_CONFIG``; None where it is unset or empty.
        flags: the choice of ``--lnc`` in ``NEURON_CC_FLAGS``; None without that option.
    """

    variable: Choice | None
    flags: Choice | None

    @classmethod
    def now(cls) -> LncSettings:
        """Return the settings of the environment at the time of the call.

        Raises:
            ValueError: if the variable, or the compiler's flag, is neither 1 nor 2.
        """
        return cls(of_variable(), of_flags())

    def of_kernel(self, grid: int | None) -> Choice:
        """Return the number of cores for which NKI makes a kernel, with the setting that determines it.

        Args:
            grid: n of ``kernel[n](...)``; None for a launch without brackets.
        """
        if grid is not None:
            return Choice(grid, f"the grid [{grid}]")
        return self.variable or Choice(NKI_DEFAULT, "the default of NKI 0.7")

    def of_compiler(self, default: int | None = COMPILER_DEFAULT) -> Choice | None:
        """Return the number of cores that the Neuron compiler compiles for, with the setting that determines it.

        Args:
            default: the compiler's default for the hardware generation; None: the result is None where no setting is
                given.
        """
        choice = self.flags or self.variable
        if choice is not None or default is None:
            return choice
        return Choice(default, "the compiler's default")

    def launch_cores(self, kernel: str, grid: int | None, compiler_default: int | None = COMPILER_DEFAULT) -> int:
        """Return the number of cores of a launch. The arguments are those of the function :func:`launch_cores`.

        Raises:
            CoresDisagreeError: two settings disagree; the message names both and the remedy.
        """
        chosen = self.of_kernel(grid)
        for choice in (self.variable, self.of_compiler(compiler_default)):
            if choice is not None and choice.cores != chosen.cores:
                launch = kernel if grid is None else f"{kernel}[{grid}]"
                raise CoresDisagreeError(
                    f"{launch}: {chosen}, and {choice}: kernel and compiler must work with the same number (error "
                    f"NCC_EVRF066 otherwise); {self._cure(grid)}"
                )
        return chosen.cores

    def library_grid(self) -> int | None:
        """Return n if this library launches its kernels as ``kernel[n](...)``; None if it launches them as
        ``kernel(...)``.
        """
        if self.variable is not None:
            return None
        choice = self.of_compiler()
        return None if choice is None else choice.cores

    def _cure(self, grid: int | None) -> str:
        """Return the instruction that makes all settings agree.

        The number of cores to agree on comes from the grid, else from a setting, else from the compiler's default.
        """
        variable, flags = self.variable, self.flags
        choice = variable or flags
        wanted = grid if grid is not None else COMPILER_DEFAULT if choice is None else choice.cores
        steps = [] if variable is not None and variable.cores == wanted else [f"set {VARIABLE}={wanted}"]
        if flags is not None and flags.cores != wanted:
            steps.append(f"take {flags.source.replace(' in ', ' out of ')}")
        has_one_said = flags is None or variable is None or flags.cores == variable.cores
        agree_without = variable is not None and variable.cores != grid and has_one_said
        return " and ".join(steps) + (", or leave the brackets out" if grid is not None and agree_without else "")


def of_kernel(grid: int | None) -> Choice:
    """Return the number of cores for which NKI makes a kernel, with the setting that determines it.

    Args:
        grid: n of ``kernel[n](...)``; None for a launch without brackets.

    Raises:
        ValueError: if ``grid`` is None and the variable is neither 1 nor 2.
    """
    return LncSettings(of_variable() if grid is None else None, None).of_kernel(grid)


def of_compiler(default: int | None = COMPILER_DEFAULT) -> Choice | None:
    """Return the number of cores that the Neuron compiler compiles for, with the setting that determines it.

    The setting is ``--lnc`` in ``NEURON_CC_FLAGS``, else ``NEURON_LOGICAL_NC_CONFIG``, else ``default``.

    Args:
        default: the compiler's default for the hardware generation; None: the result is None if neither the flag nor
            the variable is set.

    Raises:
        ValueError: if the flag or the variable is neither 1 nor 2.
    """
    flags = of_flags()
    return LncSettings(None if flags is not None else of_variable(), flags).of_compiler(default)


def launch_cores(kernel: str, grid: int | None, compiler_default: int | None = COMPILER_DEFAULT) -> int:
    """Return the number of cores of a launch, after a check that grid, ``NEURON_LOGICAL_NC_CONFIG`` and compiler agree.

    Args:
        kernel: the name of the kernel, for messages.
        grid: n of ``kernel[n](...)``; None without brackets.
        compiler_default: the compiler's default, which is 2 on trn2 and later; None if no compiler takes part, so that
            only explicit settings must agree.

    Raises:
        CoresDisagreeError: two settings disagree; the message names both and the remedy.
        ValueError: if the variable, or the compiler's flag, is neither 1 nor 2.
    """
    return LncSettings.now().launch_cores(kernel, grid, compiler_default)


def library_grid() -> int | None:
    """Return n if this library launches its kernels as ``kernel[n](...)``; None if it launches them as ``kernel(...)``.

    The result is None if ``NEURON_LOGICAL_NC_CONFIG`` is set, else the compiler's number of cores.

    Raises:
        ValueError: if the variable, or the compiler's flag, is neither 1 nor 2.
    """
    variable = of_variable()
    return LncSettings(variable, of_flags() if variable is None else None).library_grid()


@lru_cache(maxsize=_MOST_LAUNCHES)
def _library_grid(name: str, variable: str, flags: str) -> int | None:
    settings = LncSettings(_of_variable(variable), _of_flags(flags))
    grid = settings.library_grid()
    settings.launch_cores(name, grid)
    return grid


def library_launch(name: str, kernel: Any) -> Any:
    """Return what a wrapper should call to launch one of this library's kernels: ``kernel`` if
    ``NEURON_LOGICAL_NC_CONFIG`` sets the number of cores, else ``kernel[cores]``.

    Args:
        name: the name of the kernel, for messages.
        kernel: the kernel, from ``nki.jit``.

    Raises:
        CoresDisagreeError: if the variable and the compiler's flag disagree.
        ValueError: if the variable or the flag is neither 1 nor 2.
    """
    grid = _library_grid(name, os.environ.get(VARIABLE, ""), os.environ.get(FLAGS, ""))
    return kernel if grid is None else kernel[grid]


def explanation() -> str:
    """Return one line that states the number of cores of launches as ``kernel[n](...)`` and as ``kernel(...)``.

    Raises:
        CoresDisagreeError: if the variable and the compiler's flag disagree.
        ValueError: if the variable or the flag is neither 1 nor 2.
    """
    bare, grid = of_kernel(None), library_grid()
    launch_cores("kernel(...)", grid)
    if grid is None:
        return f"{bare.cores}, with brackets and without ({bare.source})"
    source = (of_compiler() or bare).source
    if grid == bare.cores:
        return f"{grid}, with brackets ({source}) and without ({bare.source})"
    return (
        f"nkilib launches its kernels on {grid} ({source}); to launch kernels of your own on a device, write "
        f"kernel[{grid}](...) or set {VARIABLE}={grid}, because kernel(...) is made for {bare.cores} core, which the "
        f"compiler refuses (NCC_EVRF066)"
    )
