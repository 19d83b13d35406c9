# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``explain_index``: the meaning of a computed index, for out-of-range errors that speak of rows and targets."""

from __future__ import annotations

from ..tensors.tensor import NkiTensor


def explain_index(index: NkiTensor, what: str, values: NkiTensor, first_row: int, row_step: int, limit: int) -> None:
    """Attach to ``index`` the text with which an error about it starts: ``row R has <what> <value>``.

    If the value is outside [0, limit), the error says that too.

    Args:
        index: SBUF tensor of shape (P, 1) that is used as a vector offset.
        what: name of the values, for instance ``"target"``.
        values: SBUF tensor of shape (P, 1): the value behind the index of partition p.
        first_row: row of partition 0.
        row_step: rows from one partition to the next.
        limit: upper bound of the values, which should lie in [0, limit).
    """

    def describe(partition: int) -> str:
        values.storage.need_values(values)
        value = int(values.array.reshape(-1)[partition])
        outside = "" if 0 <= value < limit else f", outside [0, {limit})"
        return f"row {first_row + partition * row_step} has {what} {value}{outside}"

    index.storage.explain_indices(describe)
