"""Sums over the vocabulary beside that of the exponentials, gathered chunk by chunk as the statistics are.

With factors f_j (class weights, or weighted probabilities) a chunk k of maximum m_k gives

    F_k = sum of f_j                       G_k = sum of f_j * (z_j - m_k)
    E_k = sum of exp(z_j - m_k) * (z_j - m_k)

and the row, where s_k are the sums of exponentials and m is its maximum,

    F = sum of F_k                         G = sum of G_k + F_k * (m_k - m)
    E = sum of exp(m_k - m) * (E_k + s_k * (m_k - m))

so that sum f_j * (lse - z_j) = F * log d - G and the entropy is log d - E / d: differences from the maximum, in which
large logits cancel exactly, not afterwards.
"""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.chunk_statistics import (
    FLOAT32_LOWEST,
    column_of_chunk,
    columns_in_use,
    exponentiate_distances,
    row_distances,
)
from nkilib.experimental.loss.extended_loads import sum_in_place
from nkilib.nki import nisa, nl

# exp of it is 0 in float32: what lies so far below the maximum adds nothing, -inf * 0 included.
NEGLIGIBLE = -200.0


def make_moments(rows: int, batches: int, columns: int, options: Any) -> Any:
    """Tiles for the moments of a group of batches, by name, float32: of chunks, [rows, batches, columns] and of rows,
    [rows, batches]."""
    moments = dict()
    of_chunks = list()
    of_rows = list()
    if options["has_moments"]:
        of_chunks.extend(["factors", "first"])
        of_rows.extend(["row_factors", "row_first"])
    if options["with_entropy"]:
        of_chunks.append("entropy")
        of_rows.append("row_entropy")
    if len(of_chunks) > 0:
        of_chunks.extend(["distances", "terms"])
    for name in of_chunks:
        moments[name] = nl.ndarray((rows, batches, columns), dtype=nl.float32, buffer=nl.sbuf)
    for name in of_rows:
        moments[name] = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.sbuf)
    return moments


def chunk_first_moment(
    scores_sbuf: Any, factors_sbuf: Any, products_sbuf: Any, statistics: Any, moments: Any, batch: int, chunk: int
) -> None:
    """F_k and G_k of one chunk.

    Args:
        scores_sbuf: z, [rows, columns].
        factors_sbuf: f, [rows, columns], or None for 1; may be overwritten.
        products_sbuf: float32 [rows, columns], overwritten.
        statistics, moments: with the chunk's maximum.
        batch: number of the batch in its group.
        chunk: number of the chunk in its row.
    """
    column = column_of_chunk(statistics, chunk)
    neg_max_sbuf = statistics[0][0][:, batch, column : column + 1]
    count_sbuf = moments["factors"][:, batch, column : column + 1]
    first_sbuf = moments["first"][:, batch, column : column + 1]
    if factors_sbuf == None:  # noqa: E711  (NKI has no "is")
        nisa.memset(dst=count_sbuf, value=float(scores_sbuf.shape[1]))
        nisa.tensor_scalar_reduce(
            dst=products_sbuf,
            data=scores_sbuf,
            op0=nl.add,
            operand0=neg_max_sbuf,
            reduce_op=nl.add,
            reduce_res=first_sbuf,
        )
        return None
    nisa.scalar_tensor_tensor(
        dst=products_sbuf, data=scores_sbuf, op0=nl.add, operand0=neg_max_sbuf, op1=nl.multiply, operand1=factors_sbuf
    )
    sum_in_place(factors_sbuf, count_sbuf)
    sum_in_place(products_sbuf, first_sbuf)
    return None


def distances_from_maximum(scores_sbuf: Any, products_sbuf: Any, statistics: Any, batch: int, chunk: int) -> None:
    """z - m_k of one chunk, float32; to be taken before the exponentials, which may be written over z."""
    column = column_of_chunk(statistics, chunk)
    nisa.tensor_scalar(
        dst=products_sbuf,
        data=scores_sbuf,
        op0=nl.add,
        operand0=statistics[0][0][:, batch, column : column + 1],
        op1=nl.maximum,
        operand1=NEGLIGIBLE,
    )


def chunk_entropy(
    exponentials_sbuf: Any, products_sbuf: Any, statistics: Any, moments: Any, batch: int, chunk: int
) -> None:
    """E_k of one chunk from its exponentials and z - m_k, which is overwritten."""
    column = column_of_chunk(statistics, chunk)
    nisa.tensor_tensor(dst=products_sbuf, data1=products_sbuf, data2=exponentials_sbuf, op=nl.multiply)
    sum_in_place(products_sbuf, moments["entropy"][:, batch, column : column + 1])


def row_weights_and_distances(statistics: Any, moments: Any, num_chunks: int) -> None:
    """As :func:`.chunk_statistics.row_weights`; m_k - m, finite, is kept where moments need it."""
    row_distances(statistics, num_chunks)
    if len(moments) > 0:
        used = columns_in_use(statistics, num_chunks)
        nisa.tensor_scalar(
            dst=moments["distances"][:, :, 0:used],
            data=statistics[0][2][:, :, 0:used],
            op0=nl.maximum,
            operand0=FLOAT32_LOWEST,
        )
    exponentiate_distances(statistics, num_chunks)


def row_moments(statistics: Any, moments: Any, num_chunks: int, options: Any) -> None:
    """F, G and E of the rows of a group, while the weights are there: before :func:`.chunk_statistics.row_sums`."""
    if len(moments) == 0:
        return None
    _, sums_sbuf, weights_sbuf, _ = statistics[0]
    used = columns_in_use(statistics, num_chunks)
    distances_sbuf = moments["distances"][:, :, 0:used]
    terms_sbuf = moments["terms"][:, :, 0:used]
    if options["has_moments"]:
        factors_sbuf = moments["factors"][:, :, 0:used]
        nisa.tensor_tensor(dst=terms_sbuf, data1=factors_sbuf, data2=distances_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=moments["first"][:, :, 0:used], op=nl.add)
        nisa.tensor_reduce(dst=moments["row_first"], op=nl.add, data=terms_sbuf, axis=2)
        nisa.tensor_reduce(dst=moments["row_factors"], op=nl.add, data=factors_sbuf, axis=2)
    if options["with_entropy"]:
        nisa.scalar_tensor_tensor(
            dst=terms_sbuf,
            data=distances_sbuf,
            op0=nl.maximum,
            operand0=NEGLIGIBLE,
            op1=nl.multiply,
            operand1=sums_sbuf[:, :, 0:used],
        )
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=moments["entropy"][:, :, 0:used], op=nl.add)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=weights_sbuf[:, :, 0:used], op=nl.multiply)
        nisa.tensor_reduce(dst=moments["row_entropy"], op=nl.add, data=terms_sbuf, axis=2)
    return None


def restart_moments(moments: Any, options: Any) -> None:
    """Put F, G and E of the chunks so far into column 0."""
    if options["has_moments"]:
        nisa.tensor_copy(dst=moments["factors"][:, 0, 0:1], src=moments["row_factors"])
        nisa.tensor_copy(dst=moments["first"][:, 0, 0:1], src=moments["row_first"])
    if options["with_entropy"]:
        nisa.tensor_copy(dst=moments["entropy"][:, 0, 0:1], src=moments["row_entropy"])
