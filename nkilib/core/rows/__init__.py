# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Building blocks of kernels over the rows of a matrix. NKI code may call everything here.

A row occupies a partition, ``batches`` of rows are processed at a time, in ``chunks`` of their columns, so that no
kernel needs a whole row on chip. From the bottom up:

- :mod:`.sizes`: sizes of the hardware that hold for every tile and every number;
- :mod:`.checks`: checks of arguments, as assertions that ``python -O`` keeps;
- :mod:`.tiles`: small tiles, a number for each row, and arithmetic on them;
- :mod:`.batches`: the rows of a core, in batches, and in groups of batches;
- :mod:`.sbuf`: the division of a partition of SBUF;
- :mod:`.rings`, :mod:`.scratch`: tiles used as ring buffers; :mod:`.row_sums`: sums of rows, part by part;
- :mod:`.arithmetic`: arithmetic on whole tiles, on the engine that has time; :mod:`.numbers`: numeric options;
- :mod:`.stream`: chunks of one matrix or of several, loaded ahead of the computation;
- :mod:`.overlap`: a loop that begins the next piece before it finishes the current one;
- :mod:`.elements`: gather and scatter of one element per row;
- :mod:`.statistics`, :mod:`.moments`, :mod:`.argmax`: values gathered chunk by chunk, and combined for each row;
- :mod:`.shifted`: sums of exponentials without the maximum, and which of them are not to be trusted;
- :mod:`.slots`, :mod:`.gathered`, :mod:`.recomputation`: rows that are flagged on the device and recomputed.
"""

__all__ = [
    "argmax",
    "batches",
    "checks",
    "elements",
    "gathered",
    "moments",
    "recomputation",
    "sbuf",
    "shifted",
    "slots",
    "statistics",
    "stream",
    "tiles",
]
