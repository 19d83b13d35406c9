# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values of a tensor as text, for ``print`` and debuggers: cheap for huge tensors, and never an error."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ..terms.dtypes import LOW_PRECISION
from .view import View

UNWRITTEN = "--"


def values_text(tensor: View) -> str:
    """Return the elements as numpy prints them, shortened by the same ``np.set_printoptions``.

    Unwritten elements are ``--``. Only the elements that are shown are read. For an indirect view the index is shown,
    since only an instruction follows it.
    """
    indirect = tensor.indirect_access
    if indirect is not None:
        index = indirect.index
        return f"at an address that is read at run time from {index!s}"
    if tensor.storage is None:
        return "without a storage"
    if tensor.storage.is_abstract:
        reason = "the launch was given shapes only" if tensor.storage.is_shape_only else "skip_arithmetic left them out"
        return f"without values: {reason}"
    options = np.get_printoptions()
    is_shortened = tensor.size > options["threshold"]
    edge = options["edgeitems"] if is_shortened else max(tensor.shape, default=0)
    picks = [_shown(size, edge) for size in tensor.shape]
    values = np.asarray(tensor.array[np.ix_(*picks)])
    texts = _texts(values, _unwritten(tensor, picks), tensor.dtype in LOW_PRECISION)
    # numpy puts dots for what it leaves out, so it is given one element more to leave out of a dimension.
    sizes = [min(size, 2 * edge + 1) for size in tensor.shape]
    places = [
        np.where(pick < edge, pick, pick - size + shown)
        for pick, size, shown in zip(picks, tensor.shape, sizes, strict=True)
    ]
    positions = np.zeros(sizes, np.intp)
    positions[np.ix_(*places)] = np.arange(values.size).reshape(values.shape)
    with np.printoptions(threshold=0 if is_shortened else sys.maxsize):
        return np.array2string(positions, formatter={"int": lambda position: texts[int(position)]})


def _shown(size: int, edge: int) -> npt.NDArray[np.intp]:
    """Return the indices that are shown of a dimension: all, or of a long one the first and last ``edge``."""
    if size <= 2 * edge:
        return np.arange(size)
    return np.concatenate([np.arange(edge), np.arange(size - edge, size)])


def _unwritten(tensor: View, picks: list[npt.NDArray[np.intp]]) -> npt.NDArray[np.bool_]:
    written = tensor.storage.written
    shape = tuple(len(pick) for pick in picks)
    if written.is_full or written.is_untouched:  # and no mask is made for the answer
        return np.full(shape, not written.is_full)
    mask = written.mask_of(tensor.layout, tensor.storage.width_of(tensor.dtype))
    return np.logical_not(mask[np.ix_(*picks)].all(axis=-1)).reshape(shape)


def _texts(values: npt.NDArray[Any], unwritten: npt.NDArray[np.bool_], is_low_precision: bool) -> list[str]:
    """Return the text of each element, all of one width."""
    written = values[~unwritten]
    if is_low_precision:
        written = written.astype(np.float32)
    # numpy pads all elements to one width, with the points below each other; a line for each keeps them apart.
    block = np.array2string(written, separator="\n", threshold=sys.maxsize, max_line_width=sys.maxsize)
    lines = block.removeprefix("[").removesuffix("]").split("\n")
    width = max(len(lines[0]), len(UNWRITTEN) if unwritten.any() else 0)
    formatted = iter(lines)
    return [(UNWRITTEN if is_missing else next(formatted)).rjust(width) for is_missing in unwritten.reshape(-1)]
