# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A group of two processes of which only this one exists: its all-reduces leave tensors as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def two_ranks() -> Iterator[None]:
    """This process as the first of the two."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
