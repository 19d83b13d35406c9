# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What environment variables could change is pinned: the generation, and the storage of bfloat16."""

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
    """What has been compiled before is forgotten."""
    torch._dynamo.reset()
