# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``explain_index``: lets an out-of-range error name the row and the value behind an index that a kernel computed."""

from __future__ import annotations

from ..tensors.tensor import NkiTensor


def explain_index(index: NkiTensor, what: str, values: NkiTensor, first_row: int, row_step: int, limit: int) -> None:
    """Attach to ``index`` the text with which an error about it starts: ``row R has <what> <value>``.

    If the value is outside [0, limit), the error says that too.

    Args:
        index: SBUF tensor of shape (P, 1) that is used as a vector offset.
        what: word for the values in the text, for instance ``"target"``.
        values: SBUF tensor of shape (P, 1): the value from which the index in partition p was computed.
        first_row: row of partition 0.
        row_step: difference between the rows of consecutive partitions.
        limit: upper bound of the values, which should lie in [0, limit).
    """

    def describe(partition: int) -> str:
        values.storage.need_values(values)
        value = int(values.array.reshape(-1)[partition])
        outside = "" if 0 <= value < limit else f", outside [0, {limit})"
        return f"row {first_row + partition * row_step} has {what} {value}{outside}"

    index.storage.explain_indices(describe)
