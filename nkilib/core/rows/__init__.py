# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What kernels over the rows of a matrix share: NKI code may call everything here.

A row is worked on in a partition, ``batches`` of rows at a time, and in ``chunks`` of its columns, so that no kernel
needs a whole row on chip. From the bottom up:

- :mod:`.sizes`: what the hardware says of every tile and of every number;
- :mod:`.checks`: what a kernel accepts, as assertions that ``python -O`` keeps;
- :mod:`.tiles`: small tiles, a number a row, and arithmetic on them;
- :mod:`.batches`: the rows of a core, in batches, and in groups of batches;
- :mod:`.sbuf`: how a partition of SBUF is divided;
- :mod:`.rings`, :mod:`.scratch`: tiles that are taken in turn; :mod:`.row_sums`: sums of rows, part by part;
- :mod:`.arithmetic`: whole tiles, on the engine that has time; :mod:`.numbers`: options that are numbers;
- :mod:`.stream`: chunks of one matrix or of several, loaded ahead of the computation;
- :mod:`.overlap`: pieces of which the next one is begun before this one is finished;
- :mod:`.elements`: gather and scatter of one element a row;
- :mod:`.statistics`, :mod:`.moments`, :mod:`.argmax`: what is gathered chunk by chunk, and combined a row;
- :mod:`.shifted`: sums of exponentials that do without the maximum, and which of them are not to be trusted;
- :mod:`.slots`, :mod:`.gathered`, :mod:`.recomputation`: rows that are flagged on the device, and gone through again.
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
