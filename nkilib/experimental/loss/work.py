"""What the kernels work on, whatever the tiling: from it the performance model knows how fast hardware could be.

For host code, not for kernels. The least that has to be done for logits [N, V]:

- forward: every logit crosses HBM once; one exponential and one maximum an element;
- backward: every logit crosses HBM once, and every element of the gradient; one exponential an element. The target of
  a row changes one element of it, so no pass over all elements is needed for it.

The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nkilib.simulator.model.work import Work

_INDEX_BYTES = 4  # a target is int32


def forward_work(logits_hbm: Any, dtype: Any, lse_dtype: Any = None, **_: Any) -> Work:
    """The work of ``cross_entropy_forward``, whose parameters it takes."""
    from nkilib.simulator.dtypes import as_dtype
    from nkilib.simulator.model.work import Work

    positions, vocab_size = logits_hbm.shape
    tile = as_dtype(dtype)
    lse = tile if lse_dtype is None else as_dtype(lse_dtype)
    of_position = _INDEX_BYTES + tile.itemsize + lse.itemsize  # target in; loss and log-sum-exp out
    return Work(
        hbm_bytes=positions * (vocab_size * as_dtype(logits_hbm.dtype).itemsize + of_position),
        exponentials=positions * vocab_size,
        maxima=positions * vocab_size,
        dtype=tile,
    )


def backward_work(logits_hbm: Any, lse_state_hbm: Any, dtype: Any, inplace: bool, **_: Any) -> Work:
    """The work of ``cross_entropy_backward``, whose parameters it takes."""
    from nkilib.simulator.dtypes import as_dtype
    from nkilib.simulator.model.work import Work

    positions, vocab_size = logits_hbm.shape
    logits = as_dtype(logits_hbm.dtype)
    gradient = logits if inplace else as_dtype(dtype)
    of_position = _INDEX_BYTES + as_dtype(lse_state_hbm.dtype).itemsize
    return Work(
        hbm_bytes=positions * (vocab_size * (logits.itemsize + gradient.itemsize) + of_position),
        exponentials=positions * vocab_size,
        dtype=as_dtype(dtype),
    )
