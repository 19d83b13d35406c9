# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Which tensors an instruction reads and writes, as passes ask for them."""

from __future__ import annotations

from collections.abc import Iterator

from ..noted import Access, Noted
from ..parts import Part


def part_of(access: Access) -> Part | None:
    """The part of its storage that a tensor is, or may be; None if it is empty."""
    known, layout, dtype, reach, _ = access
    return known.views.footprint(layout, dtype, reach).part


def reads_of(noted: Noted) -> Iterator[Access]:
    """The tensors that an instruction may read: the index tensors are among them, and all that a meeting touches."""
    for access in noted.operands[0 if _is_meeting(noted) else len(noted.roles.writes) :]:
        if access is not None:
            yield access
    for access in noted.operands:
        while access is not None and access[4] is not None:
            access = access[4]
            yield access
    for index, base, _ in noted.besides:
        yield index
        yield base


def writes_of(noted: Noted) -> Iterator[Access]:
    """The tensors that an instruction writes."""
    for access in noted.operands[: len(noted.roles.writes)]:
        if access is not None:
            yield access


def _is_meeting(noted: Noted) -> bool:
    definition = noted.definition
    return definition.is_untimed or (definition.cost is None and not definition.is_transfer)
