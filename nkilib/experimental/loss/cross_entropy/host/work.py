"""What the kernels work on, whatever the tiling: from it the performance model knows how fast hardware could be.

For host code, not for kernels. The least that has to be done for logits [N, V]:

- forward: every logit crosses HBM once; one exponential an element, and one maximum where that is asked for;
- backward: every logit crosses HBM once, and every element of the gradient; one exponential an element. The target of
  a row changes one element of it, so no pass over all elements is needed for it.

The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work
from nkilib.core.cores import positions_of_core
from nkilib.core.rows.recomputation import most_trips
from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.nki import nl

_INDEX_BYTES = 4  # a target is int32


def forward_work(
    logits_hbm: Any, dtype: Any, lse_dtype: Any = None, exact_maximum: bool | None = None, **_: Any
) -> Work:
    """The work of ``cross_entropy_forward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    positions, vocab_size = logits_hbm.shape
    tile = as_dtype(dtype)
    lse = tile if lse_dtype is None else as_dtype(lse_dtype)
    of_position = _INDEX_BYTES + tile.itemsize + lse.itemsize  # target in; loss and log-sum-exp out
    return Work(
        hbm_bytes=positions * (vocab_size * as_dtype(logits_hbm.dtype).itemsize + of_position),
        exponentials=positions * vocab_size,
        maxima=positions * vocab_size if exact_maximum else 0,
        dtype=tile,
    )


def backward_work(logits_hbm: Any, lse_state_hbm: Any, dtype: Any, inplace: bool, **_: Any) -> Work:
    """The work of ``cross_entropy_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    positions, vocab_size = logits_hbm.shape
    logits = as_dtype(logits_hbm.dtype)
    gradient = logits if inplace else as_dtype(dtype)
    of_position = _INDEX_BYTES + as_dtype(lse_state_hbm.dtype).itemsize
    return Work(
        hbm_bytes=positions * (vocab_size * (logits.itemsize + gradient.itemsize) + of_position),
        exponentials=positions * vocab_size,
        dtype=as_dtype(dtype),
    )


def extended_forward_work(
    logits_hbm: Any,
    targets_hbm: Any,
    class_weight_hbm: Any,
    dtype: Any,
    logit_softcap: Any,
    with_argmax: bool = False,
    exact_maximum: bool | None = None,
    **_: Any,
) -> Work:
    """The work of ``extended_cross_entropy_forward``, whose parameters it takes.

    Class probabilities and weights cross HBM once. A cap is one more activation function an element, an argmax a
    maximum.
    """
    from nkilib.simulator.terms.dtypes import as_dtype

    positions, vocab_size = logits_hbm.shape
    elements = positions * vocab_size
    results = 4 * FLOAT32_BYTES * positions  # loss, log-sum-exp, target's logit and weight
    return Work(
        hbm_bytes=_bytes(logits_hbm) + _bytes(targets_hbm) + _bytes(class_weight_hbm) + results,
        exponentials=elements if logit_softcap is None else 2 * elements,
        maxima=elements if with_argmax or exact_maximum else 0,
        dtype=as_dtype(dtype),
    )


def extended_backward_work(
    logits_hbm: Any,
    targets_hbm: Any,
    class_weight_hbm: Any,
    grad_lse_hbm: Any,
    grad_logprob_hbm: Any,
    dtype: Any,
    logit_softcap: Any,
    inplace: bool,
    **_: Any,
) -> Work:
    """The work of ``extended_cross_entropy_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    positions, vocab_size = logits_hbm.shape
    elements = positions * vocab_size
    gradient = as_dtype(logits_hbm.dtype) if inplace else as_dtype(dtype)
    vectors = 2 * FLOAT32_BYTES * positions  # log-sum-exp and gradient of the loss
    for given in (targets_hbm, class_weight_hbm, grad_lse_hbm, grad_logprob_hbm):
        vectors += _bytes(given)
    return Work(
        hbm_bytes=_bytes(logits_hbm) + elements * gradient.itemsize + vectors,
        exponentials=elements if logit_softcap is None else 2 * elements,
        dtype=as_dtype(dtype),
    )


def _bytes(array: Any) -> int:
    """Bytes of an array in HBM, none for None."""
    from nkilib.simulator.terms.dtypes import as_dtype

    return 0 if array is None else prod(array.shape) * as_dtype(array.dtype).itemsize


def forward_trips(logits_hbm: Any, **_: Any) -> dict[str, int]:
    """How often the loop of either forward runs at most: when every row of a core is computed anew.

    To be asked while the kernel runs, which knows how many cores there are.
    """
    return {"recompute_rows": most_trips(positions_of_core(logits_hbm.shape[0], nl.num_programs(), 0))}
