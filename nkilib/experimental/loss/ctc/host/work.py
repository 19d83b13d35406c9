"""What the kernels work on: log-probabilities and alphas cross HBM once each way.

The recursion is bound by latency, of which this says nothing: each step of time waits for the one before.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work
from nkilib.core.rows.sizes import FLOAT32_BYTES


def ctc_loss_forward_work(log_probs_hbm: Any, targets_hbm: Any, **_: Any) -> Work:
    """The work of ``ctc_loss_forward``, whose parameters it takes."""
    return _work(log_probs_hbm, targets_hbm, 1)


def ctc_loss_backward_work(log_probs_hbm: Any, targets_hbm: Any, **_: Any) -> Work:
    """The work of ``ctc_loss_backward``, whose parameters it takes: the log-probabilities are read, and the gradient
    has their size."""
    return _work(log_probs_hbm, targets_hbm, 2)


def _work(log_probs_hbm: Any, targets_hbm: Any, passes: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    dtype = as_dtype(log_probs_hbm.dtype)
    steps, sequences, _ = log_probs_hbm.shape
    states = 1 if targets_hbm is None else 2 * targets_hbm.shape[1] + 1
    alphas = steps * sequences * states * FLOAT32_BYTES
    return Work(passes * prod(log_probs_hbm.shape) * dtype.itemsize + alphas, dtype=dtype)
