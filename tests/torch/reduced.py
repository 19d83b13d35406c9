# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Differences from PyTorch that all sums and means of losses share: they are float32, and add roundings."""

from __future__ import annotations

from typing import Final

import torch

from tests.torch.opinfo import Budget, Difference, Sample

# A term of a sum passes through at most 128 additions: 23 of a run of 2,048, which numpy adds pairwise, 8 of the runs
# of a tile, 32 of tiles and 64 of partitions (core/cores.py). 12 more are for the roundings of the term.
SUMS: Final = Budget(of_float32=64.0, of_sum=140.0)
# Losses of rows that PyTorch's own sum reduces, in whatever order: one addition less than there are terms, of which its
# samples have at most 200, and the same 12.
SUMS_OF_PYTORCH: Final = Budget(of_float32=64.0, of_sum=199.0 + 12.0)


def is_reduced_half(sample: Sample) -> bool:
    """Tell whether a sample has a type of 16 bits, in which PyTorch returns its sum or mean."""
    _, keywords = sample.constructor
    reduction = sample.kwargs.get("reduction", keywords.get("reduction", "mean"))
    return sample.dtype != torch.float32 and reduction != "none"


REDUCED: Final = Difference("a reduced loss is float32", is_reduced_half, result_dtype=torch.float32)
