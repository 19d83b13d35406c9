# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Copies and fills run on the engine that is done first where the kernel leaves it open."""

from __future__ import annotations

from collections import Counter
from typing import Any

from nkilib.nki import nisa, nl

from .running import events

SWITCH = "chooses_engines"
FP32 = nl.float32


def copies(buffer: Any, target: str, **arguments: Any) -> Counter[str]:
    """Count by engine eight copies that share nothing."""

    def body(_: Any) -> None:
        for _ in range(8):
            source = nl.ndarray((128, 512), FP32, buffer)
            nisa.tensor_copy(nl.ndarray((128, 512), FP32), source, **arguments)

    return Counter(event.engine for event in events(body, SWITCH, target))


def test_copies_are_shared_out() -> None:
    assert set(copies(nl.sbuf, "trn2")) == {"vector", "scalar", "gpsimd"}


def test_gpsimd_cannot_read_psum() -> None:
    assert set(copies(nl.psum, "trn2")) == {"vector", "scalar"}


def test_an_engine_that_the_kernel_names_stays() -> None:
    assert copies(nl.sbuf, "trn2", engine=nisa.engine.scalar) == {"scalar": 8}


def test_on_trn1_vector_copies() -> None:
    assert copies(nl.sbuf, "trn1") == {"vector": 8}
