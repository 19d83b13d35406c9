# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks that the two cores of a launch make and return the same tensors.

:func:`check_same_tensors` compares the shared tensors that the cores made, :func:`check_same_results` their results.

A compiler builds one program for both cores. In the simulator each core runs the Python function, which could make and
return different tensors on each core, although only the result of core 0 reaches the caller.
"""

from __future__ import annotations

from typing import Any

from ..isa.definition import NkiInstruction
from ..machine.core import Core, Launch
from ..tensors.view import View
from ..terms.descriptions import describe_tensor
from ..terms.errors import NkiValidationError
from .arguments import parts_of

# Longer texts of returned values are cut.
_MOST_CHARACTERS = 400


def check_same_tensors(kernel: str, first: Core, second: Core) -> None:
    """Check that the two cores, after their end, have made the same number of tensors in shared HBM.

    Tensors that both cores have made were compared when the second core made them.

    Raises:
        NkiValidationError: one core has made more; the message shows both numbers and the first additional tensor.
    """
    counts = first.shared_tensors, second.shared_tensors
    if counts[0] == counts[1]:
        return
    number = min(counts)
    extra = first.launch.shared[number]
    raise NkiValidationError(
        f"{kernel}: both cores must make the same tensors in nl.shared_hbm, in the same order; core 0 makes "
        f"{counts[0]} and core 1 makes {counts[1]}: number {number}, "
        f"{describe_tensor(extra.name, extra.shape, extra.dtype, extra.region)}, is made on "
        f"core {int(counts[1] > number)} alone"
    )


def _difference(first: Any, second: Any, path: str) -> tuple[str, Any, Any] | None:
    """Return the first difference between two nested values: its path, and the two different items; None if there is
    none.
    """
    if type(first) is not type(second):
        return path, first, second
    if isinstance(first, View):
        is_same = (first.storage, first.layout, first.dtype) == (second.storage, second.layout, second.dtype)
        return None if is_same else (path, first, second)
    parts, others = parts_of(first), parts_of(second)
    if parts is None or others is None or isinstance(first, NkiInstruction):
        return None
    if parts.keys() != others.keys():
        return path, first, second
    for name, part in parts.items():
        found = _difference(part, others[name], path + name)
        if found is not None:
            return found
    return None


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _place(value: Any, launch: Launch) -> str:
    """Return text that distinguishes a value from one that prints the same: a tensor's location, else the type."""
    if not isinstance(value, View):
        return f"(a {type(value).__qualname__})"
    numbers = [number for number, storage in enumerate(launch.shared) if storage is value.storage]
    made = f"number {numbers[0]} of those that the kernel makes, " if numbers else ""
    return f"({made}from element {value.offset} on, with strides {list(value.strides)})"


def check_same_results(kernel: str, launch: Launch, first: Any, second: Any) -> None:
    """Check that the two cores of a launch return the same tensors in the same structure.

    Of values that are not tensors only the types are compared: a kernel may return, for instance, the number of its
    core.

    Args:
        kernel: the name of the kernel.
        launch: the launch.
        first, second: the values that the kernel function returned on core 0 and on core 1.

    Raises:
        NkiValidationError: the values differ; the message shows both.
    """
    found = _difference(first, second, "")
    if found is None:
        return
    path, *sides = found
    texts = [_text(side) for side in sides]
    if texts[0] == texts[1]:
        texts = [f"{text} {_place(side, launch)}" for text, side in zip(texts, sides, strict=True)]
    raise NkiValidationError(
        f"{kernel}: both cores must return the same tensors in the same structure; result{path} is {texts[0]} on core "
        f"0 and {texts[1]} on core 1"
    )
