# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tables of the calls of a tensor's methods that are refused, of their messages and of what is right.

    TensorOf(flat).ap([]).says("pattern needs a dimension and counts >= 0, got []").fixed([[1, 1]])

is a call of `NkiTensor.ap` on what `flat()` makes, with the message after `NkiTensor.ap: `, and the call put right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from nkilib.nki import nisa
from nkilib.simulator.tensors.tensor import NkiTensor

from .frame import refused


class Constraint(NamedTuple):
    """A rule of a method.

    Attributes:
        broken: breaks it.
        message: with which it is refused.
        corrected: keeps it.
        error: the class of the refusal.
    """

    broken: Callable[[], Any]
    message: str
    corrected: Callable[[], Any]
    error: type[Exception] = nisa.NkiValidationError

    def check(self) -> None:
        """Assert that the broken call is refused with its message, and that the corrected one is not."""
        assert refused(self.error, self.broken) == self.message
        assert isinstance(self.corrected(), NkiTensor)


class Attempt(NamedTuple):
    """A call of a method of a tensor that is refused."""

    make: Callable[[], Any]
    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    message: str = ""
    error: type[Exception] = nisa.NkiValidationError

    def says(self, reason: str, on: str = "", error: type[Exception] = nisa.NkiValidationError) -> Attempt:
        """The attempt with its message, which names the tensor first where `on` has its text."""
        where = f" on {on}" if on else ""
        return self._replace(message=f"NkiTensor.{self.method}{where}: {reason}", error=error)

    def refused_with(self, message: str, error: type[Exception] = nisa.NkiValidationError) -> Attempt:
        """The attempt with a message that does not start with the method."""
        return self._replace(message=message, error=error)

    def fixed(self, *args: Any, **options: Any) -> Constraint:
        """The rule, which other arguments keep."""
        return self.instead(lambda: getattr(self.make(), self.method)(*args, **options))

    def instead(self, corrected: Callable[[], Any]) -> Constraint:
        """The rule, which another call keeps."""
        return Constraint(
            lambda: getattr(self.make(), self.method)(*self.args, **self.options), self.message, corrected, self.error
        )


@dataclass(frozen=True)
class TensorOf:
    """A tensor on which methods are attempted.

    Attributes:
        make: makes it.
    """

    make: Callable[[], NkiTensor]

    def __getitem__(self, index: Any) -> TensorOf:
        """A part of the tensor."""
        return TensorOf(lambda: self.make()[index])

    def index(self, index: Any) -> Attempt:
        """`tensor[index]`."""
        return Attempt(self.make, "__getitem__", (index,), {})

    def __getattr__(self, method: str) -> Callable[..., Attempt]:
        """A method of the tensor."""
        if not hasattr(NkiTensor, method):
            raise AttributeError(method)
        return lambda *args, **options: Attempt(self.make, method, args, options)


def constraints(*table: Constraint) -> Any:
    """Parametrize a test over the parts of constraints that are all refused with one class of errors."""
    return pytest.mark.parametrize(("broken", "message", "corrected"), [row[:3] for row in table])
