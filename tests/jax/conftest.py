# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Fixtures that pin what environment variables could change: the generation, and the storage of bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import nkilib.simulator

if TYPE_CHECKING:  # without JAX this file is imported all the same
    from tests.jax.launch_log import LaunchLog


@pytest.fixture(autouse=True)
def _pinned_options() -> Iterator[None]:
    with nkilib.simulator.using(target="trn2", precise_fp=True):
        yield


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> LaunchLog:
    """The launches of the test."""
    from tests.jax.launch_log import counted_launches

    return counted_launches(monkeypatch)
