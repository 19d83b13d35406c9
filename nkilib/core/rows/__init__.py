# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Building blocks of kernels over the rows of a matrix. NKI code may call everything here.

Usually a row occupies one partition. ``batches`` of rows are processed at a time, in ``chunks`` of their columns, so
that no kernel needs a whole row on chip. A row may also lie on several partitions, or share one (``row_plan``).

- ``checks``: checks of arguments and numeric options, as assertions that ``python -O`` keeps;
- ``tiles``: small tiles, a number or a few sums for each row, and arithmetic that makes them;
- ``batches``: the rows of a core, in batches, and in groups of batches;
- ``row_plan``: rows on several partitions, and several rows on a partition;
- ``sbuf``: ring buffers and scratch in SBUF, and the division of a partition between them;
- ``stream``: chunks of a matrix, loaded ahead of the computation, and a loop that overlaps its pieces;
- ``elements``: gather and scatter of one element per row;
- ``scale``: the scale of exponentials, one for all rows or one for each;
- ``statistics``, ``moments``, ``argmax``: values gathered chunk by chunk, and combined for each row;
- ``shifted``: sums of exponentials without the maximum, and the check whether they are accurate;
- ``gathered``, ``recomputation``: rows that are flagged on the device and recomputed.
"""

__all__ = [
    "argmax",
    "batches",
    "checks",
    "elements",
    "gathered",
    "moments",
    "recomputation",
    "row_plan",
    "sbuf",
    "scale",
    "shifted",
    "statistics",
    "stream",
    "tiles",
]
