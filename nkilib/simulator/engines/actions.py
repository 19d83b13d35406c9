# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``act``: the effect of an instruction on whole arrays, applied at once or recorded as a step of a plan."""

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
    chosen: Sequence[NkiTensor] = (),
    may_refuse: bool = False,
) -> None:
    """Call ``function`` with the arrays of ``writes``, ``updates``, ``reads`` and ``chosen``, in this order.

    ``function`` reads and writes nothing else. A plan may call it again with other elements in arrays of the same
    shapes, so that it must not keep anything from a call. It is not called if a tensor that it writes has no values.

    Args:
        core: the core that runs the instruction.
        function: the function that computes the effect.
        writes: tensors whose elements ``function`` all writes, without reading any of them before.
        reads: tensors that it only reads.
        updates: tensors of which it writes some elements, or whose previous elements it needs.
        chosen: tensors of which it only reads elements that it chooses; it must not choose unwritten ones.
        may_refuse: whether it raises an error for some elements.
    """
    if core.emitter is not None:
        core.emitter.act(function, writes, reads, updates, chosen, may_refuse)
    elif not any([tensor.storage.is_abstract for tensor in (*writes, *updates)]):
        function(*[tensor.array for tensor in (*writes, *updates, *reads, *chosen)])


def fill(core: Core, tensor: NkiTensor, value: Any) -> None:
    """Write the number ``value`` into every element of ``tensor``.

    Raises:
        NkiValidationError: see :func:`filling`.
    """
    put(core, tensor, filling(tensor, value))


def put(core: Core, tensor: NkiTensor, elements: npt.NDArray[Any]) -> None:
    """Write ``elements``, known before the instruction runs, into ``tensor``.

    They have the shape and type of ``tensor``, or are a single element for all.
    """

    def write(into: npt.NDArray[Any]) -> None:
        into[...] = elements

    act(core, write, writes=(tensor,))


def copy_elements(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
    """Copy elements bit by bit, in row-major order, between arrays of one type that may differ in shape."""
    into[...] = elements if elements.shape == into.shape else elements.reshape(into.shape)
