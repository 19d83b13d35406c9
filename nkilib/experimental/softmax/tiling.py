# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How a launch is cut up: what the kernels' arguments say, for the loops of both axes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SoftmaxTiling"]


class SoftmaxTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: elements of a partition that an instruction takes at most; None is what is modelled to be fastest.
    """

    chunk_size: int | None = None
