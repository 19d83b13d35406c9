# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``act``: what an instruction does to whole arrays, at once or as a step of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from ..isa.fill import filling
from ..machine.core import Core
from ..tensors.tensor import NkiTensor


def act(
    core: Core,
    function: Callable[..., object],
    *,
    writes: Sequence[NkiTensor] = (),
    reads: Sequence[NkiTensor] = (),
    updates: Sequence[NkiTensor] = (),
    may_refuse: bool = False,
) -> None:
    """Call ``function`` with the arrays of ``writes``, ``updates`` and ``reads``, in this order.

    That is all that it reads and writes. It may be called again with other elements in arrays of the same shapes, and
    must not keep anything of a call. Where what it writes has no values, it is not called.

    Args:
        core: that runs the instruction.
        function: what is done.
        writes: tensors of which it writes every element and reads none before.
        reads: tensors that it only reads.
        updates: tensors of which it writes some elements, or whose elements it needs as they were.
        may_refuse: whether it raises an error for some elements.
    """
    if core.emitter is not None:
        core.emitter.act(function, writes, reads, updates, may_refuse)
    elif not any([tensor.storage.is_abstract for tensor in (*writes, *updates)]):
        function(*[tensor.array for tensor in (*writes, *updates, *reads)])


def fill(core: Core, tensor: NkiTensor, value: Any) -> None:
    """Write the number ``value`` into every element of ``tensor``.

    Raises:
        NkiValidationError: as :func:`filling`.
    """
    put(core, tensor, filling(tensor, value))


def put(core: Core, tensor: NkiTensor, elements: npt.NDArray[Any]) -> None:
    """Write ``elements``, known before the instruction runs, into ``tensor``: of its shape and type, or one for all."""

    def write(into: npt.NDArray[Any]) -> None:
        into[...] = elements

    act(core, write, writes=(tensor,))


def copy_elements(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
    """Copy bit by bit, in row-major order, between arrays of one type that may differ in shape."""
    into[...] = elements if elements.shape == into.shape else elements.reshape(into.shape)
