# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A finding: one thing that makes a kernel slow, as a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that makes a kernel slow, or on which its time depends. Modelled, not measured.

    Attributes:
        about: ``"triggers"``, ``"small rows"``, ``"first byte"``, ``"descriptors"``, ``"buffers"``, ``"loops"``,
            ``"waits"``, ``"idle engine"``, ``"small instructions"``, ``"latency"``, ``"activation tables"``,
            ``"meetings"`` or ``"same work"``.
        text: what, where in the kernel, with figures, and what to do.
        time_us: the part of the time that it is about; parts of several findings may be the same. Of descriptors, how
            far apart the times of both kinds are.
        place: ``file:line`` of the kernel, of where most of it is.
    """

    about: str
    text: str
    time_us: float
    place: str

    def __str__(self) -> str:
        return self.text
