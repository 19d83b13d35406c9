# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Flags that are saved for a backward, without elements."""

from __future__ import annotations

from itertools import product

from nkilib.jax.dispatch.saved_flags import flags_of, saved_flags


def test_flags_return_as_they_were() -> None:
    for flags in product((False, True), repeat=3):
        saved = saved_flags(*flags)
        assert saved.size == 0 and flags_of(saved) == flags
