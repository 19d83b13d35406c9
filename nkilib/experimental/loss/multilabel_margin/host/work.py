"""What the kernels work on: input and targets are read, the targets twice, and the gradient is written.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work
from nkilib.experimental.loss.multilabel_margin.targets import trips_of


def forward_work(input_hbm: Any, targets_hbm: Any, reduction: str, **_: Any) -> Work:
    """The work of ``multilabel_margin_loss_forward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    losses = input_hbm.shape[0] * as_dtype(input_hbm.dtype).itemsize if reduction == "none" else 0
    return Work(_nbytes(input_hbm) + _nbytes(targets_hbm) + losses, dtype=as_dtype(input_hbm.dtype))


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, **_: Any) -> Work:
    """The work of ``multilabel_margin_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    nbytes = 2 * _nbytes(input_hbm) + _nbytes(targets_hbm) + _nbytes(grad_loss_hbm)
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


def forward_trips(input_hbm: Any, **_: Any) -> dict[str, int]:
    """How often each loop of the forward runs at most: a row has as many targets as classes."""
    most = trips_of(int(input_hbm.shape[1]))
    return {"find_targets": most, "sum_terms": most}


def backward_trips(input_hbm: Any, **_: Any) -> dict[str, int]:
    """The same of the backward."""
    most = trips_of(int(input_hbm.shape[1]))
    return {"find_targets": most, "count_terms": most, "give": most}


def _nbytes(tensor_hbm: Any) -> int:
    from nkilib.simulator.terms.dtypes import as_dtype

    return int(prod(tensor_hbm.shape) * as_dtype(tensor_hbm.dtype).itemsize)
