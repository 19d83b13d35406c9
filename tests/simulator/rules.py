# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tables of rules of the documentation: calls that are refused, with which message, and what puts them right.

A table reads from top to bottom. `legal` gives a call that runs. Each row below it is `broken` by changes of operands,
`says` the message, and is `fixed` by what else has to change so that it runs, unless taking the changes back is it:

    legal(nisa.reciprocal, dst=Sbuf(2, 2), data=Sbuf(2, 2)),
    broken("partitions", dst=Sbuf(4, 2)).says(same_partitions("dst", "data")).fixed(dst=Sbuf(4, 2)[0:2]),

A message starts after `nisa.<name of the instruction>: `, and `{dst}` in it is the text of the operand `dst`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nkilib.nki import nisa, nl

from .kernels import Body, execute, refusal, without_where
from .made import in_kernel

Operands = dict[str, Any]
Error = type[Exception]

# An operand that is left out, though the call above has it.
LEFT_OUT: Any = object()


class Rule(NamedTuple):
    """A rule of the documentation: a kernel that breaks it, the message, and the kernel put right.

    Attributes:
        name: the name of the rule, for the test's id.
        broken: the kernel that is refused.
        message: the message of the refusal, after `file:line: `.
        corrected: the kernel that runs.
        target: generation for the broken kernel.
        corrected_target: generation for the corrected one; None for the same.
        error: the class of the refusal.
    """

    name: str
    broken: Body
    message: str
    corrected: Body
    target: str = "trn2"
    corrected_target: str | None = None
    error: Error = nisa.NkiValidationError


class Fix(NamedTuple):
    """A correction of a broken call: changes to it or another kernel, perhaps on another generation."""

    args: tuple[Any, ...]
    changes: Operands
    on: str | None
    kernel: Body | None = None


class Broken(NamedTuple):
    """A row of a table: a call with changes that break a rule.

    Attributes:
        name: the name of the rule, for the test's id.
        args: positional arguments in place of those of the call; none for the same.
        changes: operands in place of those of the call, or besides.
        on: generation; None for that of the call.
        error: the class of the refusal; None for that of the call.
        message: after the name of the function, with the names of operands in braces.
        fix: the correction; None for the call as it stands.
    """

    name: str
    args: tuple[Any, ...]
    changes: Operands
    on: str | None
    error: Error | None
    message: str = ""
    fix: Fix | None = None

    def says(self, message: str) -> Broken:
        """The row with its message."""
        return self._replace(message=message)

    def fixed(self, *args: Any, on: str | None = None, **changes: Any) -> Broken:
        """The row, put right by changes to the broken call, or by the generation on which it runs."""
        return self._replace(fix=Fix(args, changes, on))

    def instead(self, kernel: Body, on: str | None = None) -> Broken:
        """The row, with a kernel that does in another way what was meant."""
        return self._replace(fix=Fix((), {}, on, kernel))


def broken(name: str, *args: Any, on: str | None = None, error: Error | None = None, **changes: Any) -> Broken:
    """A row: the call above with these changes is refused."""
    return Broken(name, args, changes, on, error)


class Legal(NamedTuple):
    """A call that runs, at the head of the rows that change it.

    Attributes:
        kernel_of: makes the kernel with the call of its positional and keyword arguments.
        says: how messages about it start.
        args: positional arguments, which may be described.
        operands: keyword arguments, which may be described.
        on: the generation.
        error: the class of its refusals.
    """

    kernel_of: Callable[..., Body]
    says: str
    args: tuple[Any, ...]
    operands: Operands
    on: str
    error: Error

    def rule(self, row: Broken) -> Rule:
        """The rule of a row."""
        args, operands = row.args or self.args, _with(self.operands, row.changes)
        return Rule(
            name=row.name,
            broken=self.kernel_of(*args, **operands),
            message=self.says + row.message.format(*args, **operands),
            corrected=self._corrected(row.fix, args, operands),
            target=row.on or self.on,
            corrected_target=row.fix.on if row.fix else self.on,
            error=row.error or self.error,
        )

    def _corrected(self, fix: Fix | None, args: tuple[Any, ...], operands: Operands) -> Body:
        if fix is None:
            return self.kernel_of(*self.args, **self.operands)
        return fix.kernel or self.kernel_of(*(fix.args or args), **_with(operands, fix.changes))


def _with(operands: Operands, changes: Operands) -> Operands:
    return {name: value for name, value in (operands | changes).items() if value is not LEFT_OUT}


def legal(
    function: Any, *args: Any, on: str = "trn2", error: Error = nisa.NkiValidationError, **operands: Any
) -> Legal:
    """The head of rows about a function of `nisa` or `nl`: a call of it that runs; rows change its operands by name."""
    name = function.__name__
    module = "nisa" if getattr(nisa, name, None) is function else "nl"
    assert getattr(nl if module == "nl" else nisa, name) is function

    signature = inspect.signature(function)

    def kernel_of(**operands: Any) -> Body:
        bound = signature.bind(**operands)  # by position as far as there is no gap, as kernels call it
        return lambda: function(*in_kernel(bound.args), **in_kernel(bound.kwargs))

    by_name = dict(zip(signature.parameters, args, strict=False))
    return Legal(kernel_of, f"{module}.{name}: ", (), by_name | operands, on, error)


def legal_kernel(
    says: str,
    kernel_of: Callable[..., Body],
    *args: Any,
    on: str = "trn2",
    error: Error = nisa.NkiValidationError,
    **operands: Any,
) -> Legal:
    """The head of rows about kernels that `kernel_of` makes, and whose refusals start with `says: `."""
    return Legal(kernel_of, f"{says}: ", args, operands, on, error)


def check_rule(rule: Rule) -> None:
    """Assert that the broken kernel is refused with its message and that the corrected one runs.

    What the corrected one gives is no result of a kernel: it may be a register, an instruction or a tile.
    """
    assert refusal(rule.broken, rule.target, error=rule.error) == rule.message
    execute(lambda: (rule.corrected(), None)[1], rule.corrected_target or rule.target)


def check_rule_on_two_cores(rule: Rule) -> None:
    """`check_rule` where both cores break the rule: the message is that of core 0.

    A message may have `{core}` and `{other}`, the numbers of that core and of the other one, in double braces in a row.
    """
    with pytest.raises(rule.error) as caught:
        execute(rule.broken, cores=2)
    place, _, message = str(caught.value).partition(": ")
    assert place.startswith(f"{rule.broken.__code__.co_filename}:")
    expected = rule.message.replace(": ", " on core {core}: ", 1)
    assert without_where(message) == expected.format(core=0, other=1)
    execute(rule.corrected, cores=2)


def rules(*table: Legal | Broken | Rule) -> Any:
    """Parametrize a test over the rules of a table."""
    results: list[Rule] = []
    head: Legal | None = None
    for entry in table:
        if isinstance(entry, Legal):
            head = entry
        elif isinstance(entry, Rule):
            results.append(entry)
        else:
            assert head is not None, f"rules: the row {entry.name!r} needs a call above it"
            results.append(head.rule(entry))
    return pytest.mark.parametrize("rule", results, ids=[rule.name for rule in results])
