# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The guarantees of a kernel, stated next to the kernel as data. Tests check each claim; pages and commands print them.

:func:`states_guarantee` attaches a :class:`Guarantee`, with a :class:`TermError` as a bound of errors, and
:func:`guarantee_stated_for` returns it. Bounds say what an activation function adds in the words of
:func:`of_each_unit`. This module imports nothing of this library, so that a statement of guarantees depends on
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Function = TypeVar("Function", bound=Callable[..., Any])


def of_each_unit(function: str) -> str:
    """Return the words for how much a bound grows with the error of an activation function, beyond the u / 2 that it
    includes.
    """
    return f"for each u of error of {function} beyond u / 2"


@dataclass(frozen=True)
class TermError:
    """A bound on the error of float32 losses, in units of u M: u is 2^-23, and M the largest magnitude among the loss
    and the terms of which it is a sum.

    Attributes:
        own: the bound in these units if the results of all activation functions are correctly rounded, to half a u.
        functions: for each activation function by name, the units by which the bound grows for each further u of the
            function's own error (beyond half a u).
        terms: the terms of which the loss is a sum, as formulas; empty: M is the magnitude of the loss.
        form: the form of the loss for which the bound holds, such as ``"with pos_weight"``; empty: every form.
        beside: the part of the bound that is not in proportion to M, as a text; empty: none.
        additions: for a loss with a sum (such as that over the elements of a row): the units by which each of its n
            consecutive additions increases the bound, which is then own + additions * n; 0 for a loss without such a
            sum.
    """

    own: float
    functions: Mapping[str, float] = field(default_factory=dict)
    terms: str = ""
    form: str = ""
    beside: str = ""
    additions: float = 0.0

    @property
    def figure(self) -> str:
        """The bound as a text, such as ``"1.5"``, or ``"1.5 + 0.5 n"`` for sums of n numbers."""
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
    """The guarantees of a kernel. They hold for every size, type and option that it accepts.

    Attributes:
        math: the precision in which elements are computed, such as ``"float32"``.
        accumulator: the precision in which sums are kept.
        deterministic: whether the results are bitwise identical on every run with the same inputs, on one machine
            (docs/explanation/simulator.md, "Bitwise identical results").
        same_bits_on_cores: whether the results on one core and on two are bitwise identical.
        workspace: the largest number of bytes of HBM beyond inputs and outputs, as an expression in the sizes of the
            kernel's docstring; ``"0"`` if there are none.
        workspace_bytes: a function of ``cores`` and the kernel's parameters, all by name, that returns these bytes for
            a launch; None where ``workspace`` is ``"0"``.
        in_place: the input that a result may be written over; None if none.
        error: the bound on the error of the results, as a formula, in units that it names; the docs derive it.
        notes: further facts for users, such as the limits of a guarantee.
        term_errors: the bounds of ``error`` as figures, one for each form of a loss; empty for other kernels.
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
    """Attach a guarantee to a kernel function; the function itself stays as it is.

    Example::

        double = nki.jit(states_guarantee(EXACT)(kernels.double))
    """

    def state(function: Function) -> Function:
        _GUARANTEES[function] = guarantee
        return function

    return state


def guarantee_stated_for(function: Callable[..., Any]) -> Guarantee | None:
    """Return the guarantee attached to a kernel function, or to the function that it wraps; None if there is none."""
    try:
        stated = _GUARANTEES.get(function)
    except TypeError:  # a callable without a hash, or that no weak reference can point to
        return None
    wrapped: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    return stated if stated is not None or wrapped is None else guarantee_stated_for(wrapped)
