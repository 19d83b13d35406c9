# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensors that an instruction reads and writes, for the passes."""

from __future__ import annotations

from collections.abc import Iterator

from ..noted import Access, Noted
from ..parts import Part


def part_of(access: Access) -> Part | None:
    """Return the part of its storage that a tensor occupies, or may occupy; None if it has no elements."""
    known, layout, dtype, reach, _ = access
    return known.views.footprint(layout, dtype, reach).part


def reads_of(noted: Noted) -> Iterator[Access]:
    """Yield the tensors that an instruction may read, including index tensors and everything that a barrier touches."""
    for access in noted.operands[0 if _is_meeting(noted) else len(noted.roles.writes) :]:
        if access is not None:
            yield access
    for access in noted.operands:
        while access is not None and access[4] is not None:
            access = access[4]
            yield access
    for index, base, *_ in noted.besides:
        yield index
        yield base


def writes_of(noted: Noted) -> Iterator[Access]:
    """Yield the tensors that an instruction writes."""
    for access in noted.operands[: len(noted.roles.writes)]:
        if access is not None:
            yield access


def _is_meeting(noted: Noted) -> bool:
    definition = noted.definition
    return definition.is_untimed or (definition.cost is None and not definition.is_transfer)
