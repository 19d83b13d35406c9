# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that format the figures and lists in the sentences of findings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

_KIB = 1024.0
_MOST_LISTED = 3

Key = TypeVar("Key", bound=Hashable)


def us(nanoseconds: float) -> str:
    """Format a duration in microseconds."""
    return f"{nanoseconds / 1000.0:,.1f} us"


def percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{share:.0%}"


def nbytes(count: float) -> str:
    """Format a number of bytes in B, KiB or MiB."""
    if count < _KIB:
        return f"{count:,.0f} B"
    return f"{count / _KIB:,.1f} KiB" if count < _KIB * _KIB else f"{count / _KIB / _KIB:,.1f} MiB"


def times(count: int) -> str:
    """Format a count as "once" or "n times"."""
    return "once" if count == 1 else f"{count:,} times"


def summed(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return, for each key, the sum of the values in the pairs with that key."""
    sums: dict[Key, float] = {}
    for key, value in pairs:
        sums[key] = sums.get(key, 0.0) + value
    return sums


def largest(durations: Mapping[str, float], most: int = _MOST_LISTED) -> list[tuple[str, float]]:
    """Return the ``most`` entries with the longest durations, the longest first."""
    return sorted(durations.items(), key=lambda item: (-item[1], item[0]))[:most]


def joined(items: Iterable[str]) -> str:
    """Join items as ``a, b and c``."""
    listed: Sequence[str] = list(items)
    return " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)
