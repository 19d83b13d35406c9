# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of sizes, positions and dimensions: integers, or an error that names the offending argument."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from .errors import NkiValidationError, RegisterTypeError


def is_integer(value: Any) -> bool:
    """Return whether ``value`` is an integer of Python or numpy; a boolean is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_integer(what: str, value: Any) -> int:
    """Return ``value`` as an int.

    Raises:
        NkiValidationError: if it is no integer; the message names ``what``.
        RegisterTypeError: if it is a register.
    """
    try:
        return index(value)
    except RegisterTypeError:
        raise
    except TypeError:
        raise NkiValidationError(f"{what} must be an integer, got {value!r}{_remedy([value])}") from None


def as_integers(what: str, values: Any) -> tuple[int, ...]:
    """Return ``values`` as a tuple of int.

    Raises:
        NkiValidationError: if they are no sequence of integers; the message names ``what``.
        RegisterTypeError: if one of them is a register.
    """
    try:
        return tuple(map(index, values))
    except RegisterTypeError:
        raise
    except TypeError:
        parts = values if isinstance(values, tuple | list) else []
        raise NkiValidationError(f"{what} must be a tuple of integers, got {values!r}{_remedy(parts)}") from None


def _remedy(values: Any) -> str:
    is_quotient = any(isinstance(value, float) and value.is_integer() for value in values)
    return "; of two integers, / makes a float and // an integer" if is_quotient else ""
