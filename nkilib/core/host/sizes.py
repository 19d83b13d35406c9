# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of sizes and types for host functions that choose tilings. Types may be of any library."""

from __future__ import annotations

from operator import index
from typing import Any


def checked_size(caller: str, name: str, value: Any, of: str) -> int:
    """Return a size as a Python integer.

    Args:
        caller: the name with which errors begin.
        name: the name of the argument.
        value: the value of the argument.
        of: a phrase for errors that names the tensor with this dimension, such as "the logits".

    Raises:
        TypeError: the value is not an integer.
        ValueError: the value is less than 1.
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
    """Return the name of a type without its module, such as ``"bfloat16"``. The type may be of any library, or a
    string.
    """
    if isinstance(dtype, str):
        return str(dtype)
    return str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]
