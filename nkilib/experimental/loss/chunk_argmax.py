"""The class of the largest logit, the first one of equals, gathered chunk by chunk as the statistics are.

Of each chunk two numbers are kept, -m_k and the class where m_k stands first. In a row, classes of the largest m_k
stay, and the smallest of them is taken. Classes are counted in float32, which is exact up to 2^24.

A NaN is equal to nothing: a row that holds one has no argmax, and gets the number of classes, one past the last.
"""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.chunk_statistics import NEGATIVE_ONE, column_of_chunk, columns_in_use
from nkilib.nki import nisa, nl

# What nc_find_index8 looks for at a time, and in how many elements.
VALUES = 8
SEARCHED_MAX = 16384


def make_argmax(rows: int, batches: int, columns: int, dtype: Any) -> Any:
    """Tiles for the argmax of a group of batches.

    Returns:
        Of chunks: -m_k and classes, float32 [rows, batches, columns]. Of rows: the same, [rows, batches]. For one
        chunk: eight elements and eight values of ``dtype``, and eight places, [rows, 8].
    """
    of_chunks = list()
    of_rows = list()
    for _ in range(2):
        of_chunks.append(nl.ndarray((rows, batches, columns), dtype=nl.float32, buffer=nl.sbuf))
        of_rows.append(nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.sbuf))
    short_sbuf = nl.ndarray((rows, VALUES), dtype=dtype, buffer=nl.sbuf)
    values_sbuf = nl.ndarray((rows, VALUES), dtype=dtype, buffer=nl.sbuf)
    places_sbuf = nl.ndarray((rows, VALUES), dtype=nl.uint32, buffer=nl.sbuf)
    return of_chunks, of_rows, (short_sbuf, values_sbuf, places_sbuf)


def chunk_argmax(
    chunk_sbuf: Any, exact_neg_max_sbuf: Any, argmax: Any, statistics: Any, batch: int, chunk: int, first: int
) -> None:
    """-m_k and the class of m_k of one chunk.

    Args:
        chunk_sbuf: the logits, [rows, columns]. A cap would keep their order, but rounding makes equals of some.
        exact_neg_max_sbuf: -m_k in the type of the chunk, [rows, 1].
        argmax: from :func:`make_argmax`.
        statistics: whose columns these follow.
        batch: number of the batch in its group.
        chunk: number of the chunk in its row.
        first: class of the chunk's first column.
    """
    of_chunks, _, (short_sbuf, values_sbuf, places_sbuf) = argmax
    rows, size = chunk_sbuf.shape
    column = column_of_chunk(statistics, chunk)
    class_sbuf = of_chunks[1][:, batch, column : column + 1]
    nisa.tensor_copy(dst=of_chunks[0][:, batch, column : column + 1], src=exact_neg_max_sbuf)
    nisa.tensor_scalar(
        dst=values_sbuf, data=exact_neg_max_sbuf.broadcast(1, VALUES), op0=nl.multiply, operand0=NEGATIVE_ONE
    )
    if size < VALUES:  # the first column fills up what is too short: it is found where it stands first
        nisa.tensor_copy(dst=short_sbuf, src=chunk_sbuf[:, 0:1].broadcast(1, VALUES))
        nisa.tensor_copy(dst=short_sbuf[:, 0:size], src=chunk_sbuf)
        chunk_sbuf = short_sbuf
        size = VALUES
    for start in range(0, size, SEARCHED_MAX):
        # A part that would be too short starts earlier; what it has in common with the one before was found there.
        begin = min(start, size - VALUES)
        part_sbuf = chunk_sbuf[0:rows, begin : min(start + SEARCHED_MAX, size)]
        nisa.nc_find_index8(dst=places_sbuf, data=part_sbuf, vals=values_sbuf)
        _keep_first(class_sbuf, places_sbuf[:, 0:1], first + begin, start == 0)


def _keep_first(class_sbuf: Any, place_sbuf: Any, offset: int, is_first: bool) -> None:
    """The class of a place, or the smaller one of it and of what was found before. A place not found is over 2^31."""
    if is_first:
        nisa.tensor_scalar(dst=class_sbuf, data=place_sbuf, op0=nl.add, operand0=float(offset))
    else:
        nisa.scalar_tensor_tensor(
            dst=class_sbuf, data=place_sbuf, op0=nl.add, operand0=float(offset), op1=nl.minimum, operand1=class_sbuf
        )


def row_argmax(argmax: Any, statistics: Any, num_chunks: int, num_classes: int) -> None:
    """The class of each row of a group: num_classes - max of (num_classes - class) over the chunks whose m_k is m."""
    of_chunks, of_rows, _ = argmax
    used = columns_in_use(statistics, num_chunks)
    neg_max_sbuf = of_chunks[0][:, :, 0:used]
    rows, batches, _ = neg_max_sbuf.shape
    row_neg_max_sbuf, row_class_sbuf = of_rows
    candidates_sbuf = nl.ndarray((rows, batches, used), dtype=nl.float32, buffer=nl.sbuf)
    is_largest_sbuf = nl.ndarray((rows, batches, used), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
    nisa.tensor_tensor(
        dst=is_largest_sbuf,
        data1=neg_max_sbuf,
        data2=row_neg_max_sbuf.expand_dim(2).broadcast(2, used),
        op=nl.equal,
    )
    nisa.scalar_tensor_tensor(
        dst=candidates_sbuf,
        data=of_chunks[1][:, :, 0:used],
        op0=nl.subtract,
        operand0=float(num_classes),
        reverse0=True,
        op1=nl.multiply,
        operand1=is_largest_sbuf,
    )
    nisa.tensor_reduce(dst=row_class_sbuf, op=nl.maximum, data=candidates_sbuf, axis=2)
    nisa.tensor_scalar(
        dst=row_class_sbuf, data=row_class_sbuf, op0=nl.subtract, operand0=float(num_classes), reverse0=True
    )


def restart_argmax(argmax: Any) -> None:
    """Put -m and class of the chunks so far into column 0. A row with a NaN keeps it in -m, and finds nothing later."""
    of_chunks, of_rows, _ = argmax
    for number in range(2):
        nisa.tensor_copy(dst=of_chunks[number][:, 0, 0:1], src=of_rows[number])
