# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Fixtures that pin what environment variables could change: the generation, and the storage of bfloat16."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import nkilib.simulator


@pytest.fixture(autouse=True)
def _pinned_options() -> Iterator[None]:
    with nkilib.simulator.using(target="trn2", precise_fp=True):
        yield


@pytest.fixture
def compile_afresh() -> None:
    """Forget everything that has been compiled before."""
    torch._dynamo.reset()
