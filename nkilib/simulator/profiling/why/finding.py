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
        text: the fault, its place in the kernel, figures, and a remedy.
        time_us: the part of the time that it is about; several findings may be about the same time. For descriptors,
            the difference between the times of both kinds.
        place: ``file:line`` of the kernel at which most of it happens.
        saved_us: the saving that the text states, an estimate; 0 if it states none.
    """

    about: str
    text: str
    time_us: float
    place: str
    saved_us: float = 0.0

    def __str__(self) -> str:
        return self.text
