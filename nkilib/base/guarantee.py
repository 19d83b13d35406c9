# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The guarantees of a kernel, stated next to the kernel as data. Tests check each claim; pages and commands print them.

:func:`states_guarantee` attaches a :class:`Guarantee` to a kernel, and :func:`guarantee_stated_for` returns it. A
:class:`TermError` is a bound on the error of a loss. This module imports no other module of this library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Function = TypeVar("Function", bound=Callable[..., Any])


def of_each_unit(function: str) -> str:
    """Return ``"for each u of error of FUNCTION beyond u / 2"``, with the name of an activation function for FUNCTION.

    Every bound already includes u / 2 for the function's own error.
    """
    return f"for each u of error of {function} beyond u / 2"


@dataclass(frozen=True)
class TermError:
    """A bound on the error of a float32 loss, in units of u M.

    M is the largest magnitude among the loss and its terms: the numbers that are added to give the loss.

    Attributes:
        own: the bound if the results of all activation functions are correctly rounded, that is, off by at most u / 2.
        functions: by name of an activation function, how much the bound grows for each u by which that function's error
            exceeds u / 2.
        terms: the terms of the loss, as formulas; empty: M is the magnitude of the loss.
        form: the options of the loss for which the bound holds, such as ``"with pos_weight"``; empty: all options.
        beside: a text with the part of the bound that is not in proportion to M; empty: none.
        additions: how much each of n consecutive additions (such as those over a row) increases the bound, which is own
            + additions * n; 0 for a loss without a sum.
    """

    own: float
    functions: Mapping[str, float] = field(default_factory=dict)
    terms: str = ""
    form: str = ""
    beside: str = ""
    additions: float = 0.0

    @property
    def figure(self) -> str:
        """The bound as a text, such as ``"1.5"``, or ``"1.5 + 0.5 n"`` for a sum of n numbers."""
        factor = "" if self.additions == 1.0 else f"{self.additions:g} "
        return f"{self.own:g} + {factor}n" if self.additions else f"{self.own:g}"

    def __str__(self) -> str:
        """Return the bound as a clause.

        For example: ``"with pos_weight: 2.5 u times the largest of the loss, w s and p, plus 1 u for each u of error of
        exp beyond u / 2"``.
        """
        figure = f"({self.figure})" if self.additions else self.figure
        parts = [f"{figure} u times {f'the largest of the loss, {self.terms}' if self.terms else 'the loss'}"]
        parts += [f"plus {self.beside}"] if self.beside else []
        parts += [f"plus {factor:g} u {of_each_unit(name)}" for name, factor in self.functions.items()]
        return f"{self.form}: {', '.join(parts)}" if self.form else ", ".join(parts)


@dataclass(frozen=True)
class Guarantee:
    """The guarantees of a kernel. They hold for every size, type and option that the kernel accepts.

    Attributes:
        math: the precision in which elements are computed, such as ``"float32"``.
        accumulator: the precision of the accumulators of sums.
        deterministic: whether the results are bitwise identical on every run with the same inputs, on one machine
            (docs/explanation/simulator.md, "Bitwise identical results").
        same_bits_on_cores: whether the results on one core and on two are bitwise identical.
        workspace: the largest number of bytes of HBM that the kernel allocates beyond inputs and outputs, as a formula
            in sizes that the kernel's docstring names, such as N; ``"0"`` if it allocates none.
        workspace_bytes: a function that takes ``cores`` and the kernel's parameters by name and returns the bytes of
            workspace of a launch; None where ``workspace`` is ``"0"``.
        in_place: the input that a result may be written over; None if none.
        error: the bound on the error of the results, as a formula that names its units; the docs derive the formula.
        notes: further facts for users, such as the limits of a guarantee.
        term_errors: for a loss, the bounds of ``error`` as numbers, one for each set of options; empty for other
            kernels.
    """

    math: str
    accumulator: str
    deterministic: bool
    same_bits_on_cores: bool
    workspace: str
    in_place: str | None
    error: str
    workspace_bytes: Callable[..., int] | None = None
    notes: str = ""
    term_errors: tuple[TermError, ...] = ()


_GUARANTEES: WeakKeyDictionary[Callable[..., Any], Guarantee] = WeakKeyDictionary()


def states_guarantee(guarantee: Guarantee) -> Callable[[Function], Function]:
    """Return a decorator that attaches a guarantee to a kernel function and returns the function unchanged.

    Example::

        double = nki.jit(states_guarantee(EXACT)(kernels.double))
    """

    def state(function: Function) -> Function:
        _GUARANTEES[function] = guarantee
        return function

    return state


def guarantee_stated_for(function: Callable[..., Any]) -> Guarantee | None:
    """Return the guarantee attached to a kernel function, or to the function in its ``__wrapped__``; None if neither
    has one.
    """
    try:
        stated = _GUARANTEES.get(function)
    except TypeError:  # a callable without a hash, or that no weak reference can point to
        return None
    wrapped: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    return stated if stated is not None or wrapped is None else guarantee_stated_for(wrapped)
