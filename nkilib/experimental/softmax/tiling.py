# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of a launch, from the kernel's arguments. The loops along the last axis and along other axes share it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SoftmaxTiling"]


class SoftmaxTiling(NamedTuple):
    """The tiling of a launch, to pass to a kernel: ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: the maximum number of elements per partition that an instruction processes; None means the number
            that is modelled to be fastest.
    """

    chunk_size: int | None = None
