# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a kernel promises, stated beside the kernel as data: tests hold each claim, pages and commands print them.

It imports nothing of this library, so that whoever states a promise depends on nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class TermError:
    """A bound on the error of float32 losses, in u = 2^-23 of the largest one of the loss itself and of its terms.

    Attributes:
        own: u of the kernel's arithmetic alone, where every activation function is rounded correctly.
        functions: by activation function, how many u more there are for each u that it is off beyond half a unit.
        terms: which the loss is a sum of, as formulas; none: the loss itself is the largest.
        form: of the loss, as ``"with pos_weight"``; none: every one.
        beside: what is not in proportion to the largest term.
        additions: u more for each addition in a row, n of them, of a sum.
    """

    own: float
    functions: Mapping[str, float] = field(default_factory=dict)
    terms: str = ""
    form: str = ""
    beside: str = ""
    additions: float = 0.0

    @property
    def figure(self) -> str:
        """``"1.5"``, or ``"1.5 + 0.5 n"``."""
        factor = "" if self.additions == 1.0 else f"{self.additions:g} "
        return f"{self.own:g} + {factor}n" if self.additions else f"{self.own:g}"

    def __str__(self) -> str:
        """``"with pos_weight: 2.5 u of the largest of the loss, w s and p, 1 u more for each further u of exp"``."""
        figure = f"({self.figure})" if self.additions else self.figure
        parts = [f"{figure} u of {f'the largest of the loss, {self.terms}' if self.terms else 'the loss'}"]
        parts += [self.beside] if self.beside else []
        parts += [f"{factor:g} u more for each further u of {name}" for name, factor in self.functions.items()]
        return f"{self.form}: {', '.join(parts)}" if self.form else ", ".join(parts)


@dataclass(frozen=True)
class Guarantee:
    """The promises of a kernel, the same for every size, type and option that it accepts.

    Attributes:
        math: precision in which elements are computed, such as ``"float32"``.
        accumulator: precision in which sums are kept.
        deterministic: the same inputs give the same bits on every run, on one machine (docs/simulator.md, "Which bits
            are the same").
        same_bits_on_cores: one core and two give the same bits.
        workspace: most bytes of HBM beyond inputs and outputs, as an expression in the sizes of the kernel's
            docstring; ``"0"`` if there are none.
        workspace_bytes: takes ``cores`` and the kernel's parameters, all by name, and returns these bytes for a
            launch; None where ``workspace`` is ``"0"``.
        in_place: which input a result may be written over; None if none.
        error: the bound on the error of the results, as a formula, in units that it names; what it is derived from
            stands in the docs.
        notes: what else a user has to know, such as where a promise ends.
        term_errors: the bounds of ``error`` as figures, one for each form of a loss; none where there are no such ones.
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
    """State what a kernel function promises; the function itself stays as it is.

    Example::

        double = nki.jit(states_guarantee(EXACT)(kernels.double))
    """

    def state(function: Function) -> Function:
        _GUARANTEES[function] = guarantee
        return function

    return state


def stated_guarantee(function: Callable[..., Any]) -> Guarantee | None:
    """What was stated of a kernel function, or of what it wraps; None if nothing was."""
    try:
        stated = _GUARANTEES.get(function)
    except TypeError:  # a callable without a hash, or that no weak reference can point to
        return None
    wrapped: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    return stated if stated is not None or wrapped is None else stated_guarantee(wrapped)
