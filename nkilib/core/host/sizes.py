# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What functions that choose tilings are given: sizes, and types of any library. Never traced."""

from __future__ import annotations

from operator import index
from typing import Any


def checked_size(caller: str, name: str, value: Any, of: str) -> int:
    """A size as a Python integer.

    Args:
        caller: that is named in errors.
        name: of the argument.
        value: what came.
        of: whose dimension it should be, in words.

    Raises:
        TypeError: if it is no integer.
        ValueError: if it is less than 1.
    """
    try:
        size = None if isinstance(value, bool) else index(value)
    except TypeError:
        size = None
    if size is None:
        raise TypeError(f"{caller}: {name} must be an integer, got {value!r}; pass a dimension of {of}")
    if size <= 0:
        raise ValueError(f"{caller}: {name} must be at least 1, got {size}; launch nothing for empty {of}")
    return size


def dtype_name(dtype: Any) -> str:
    """The last part of a type's name, whichever library it is of: none of them has to be installed."""
    if isinstance(dtype, str):
        return str(dtype)
    return str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]
