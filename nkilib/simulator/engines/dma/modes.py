# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rules that DMA instructions share: priority, descriptor generation, and the handling of indices out of range.

Sources: docstrings of ``dma_copy`` and ``dma_transpose``, and ``nki/deep-dives/nki-dge.rst``.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from ...machine.core import Core
from ...tensors.tensor import NkiTensor
from ...terms.enums import dge_mode as DgeMode
from ...terms.enums import nc_version
from ...terms.enums import oob_mode as OobMode
from ...terms.errors import NkiValidationError

_LOWEST_PRIORITY = 3
_Mode = TypeVar("_Mode", bound=Enum)


def as_oob_mode(oob_mode: OobMode | int) -> OobMode:
    """Return ``oob_mode`` as a member of the enumeration; published kernels also pass its value.

    Raises:
        NkiValidationError: for anything else.
    """
    return _member("oob_mode", OobMode, oob_mode)


def as_dge_mode(core: Core, dge_mode: DgeMode | int) -> DgeMode:
    """Return ``dge_mode`` as a member that the generation has; published kernels also pass the member's value.

    Raises:
        NkiValidationError: for anything else.
    """
    mode = _member("dge_mode", DgeMode, dge_mode)
    if mode is DgeMode.hwdge and core.generation.version is nc_version.gen2:
        raise NkiValidationError("dge_mode=hwdge needs trn2 or newer")
    return mode


def _member(name: str, kind: type[_Mode], value: Any) -> _Mode:
    if type(value) is kind:
        return value
    for member in kind:
        if type(value) is int and value == member.value:
            return member
    raise NkiValidationError(f"{name} must be a member of nki.isa.{name}, got {value!r}")


def check_priority(core: Core, priority: int | None) -> None:
    """Check that the generation of the core has this DMA priority; None is always allowed.

    Raises:
        NkiValidationError: naming the range and the generation.
    """
    if priority is None:
        return
    is_known = isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= _LOWEST_PRIORITY
    if core.generation.version is not nc_version.gen4 or not is_known:
        raise NkiValidationError(
            f"priority is 0 to {_LOWEST_PRIORITY} and needs trn3, got {priority!r} on {core.generation.name}"
        )


def has_vector_offset(view: NkiTensor) -> bool:
    """Return whether every row of a view has its own index, which makes the transfer a gather or a scatter."""
    indirect = view.indirect_access
    return indirect is not None and indirect.kind == "vector"


def check_vector_offset(core: Core, dge_mode: DgeMode) -> None:
    """Check that the call may be a gather or a scatter: only software writes their descriptors, from trn2 on.

    Raises:
        NkiValidationError: naming the generation or the mode.
    """
    if core.generation.version is nc_version.gen2:
        raise NkiValidationError("a vector offset needs trn2 or newer")
    if dge_mode not in (DgeMode.unknown, DgeMode.swdge):
        raise NkiValidationError(f"a vector offset needs dge_mode unknown or swdge, got {dge_mode.name}")
