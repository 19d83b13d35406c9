# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels' tests pin what environment variables could change: the generation and the storage of bfloat16."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nkilib.simulator


@pytest.fixture(autouse=True)
def pinned_options() -> Iterator[None]:
    with nkilib.simulator.using(target="trn2", precise_fp=True):
        yield
