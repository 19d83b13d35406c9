"""What the kernels work on, whatever the tiling: the least that has to cross HBM, and activation functions.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.

A KL takes two exponentials an element, forward and backward but for KL(student || teacher) backward, which takes the
student's alone. Jensen-Shannon takes two for the log-sum-exps, and then both again and a softplus; its gradient the
student's and a softplus.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work
from nkilib.core.cores import positions_of_core
from nkilib.core.rows.recomputation import BATCHES_MAX, most_trips
from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.core.rows.slots import ROWS_OF_TILE
from nkilib.nki import nl

_RESULTS = 6


def forward_work(student_hbm: Any, teacher_hbm: Any, labels_hbm: Any = None, beta: float = 0.0, **_: Any) -> Work:
    """The work of ``distillation_forward``, whose parameters it takes, if each logit is read once."""
    vectors = (_RESULTS + (labels_hbm is not None)) * FLOAT32_BYTES * student_hbm.shape[0]
    nbytes = _bytes(student_hbm) + _bytes(teacher_hbm) + vectors
    return _work(student_hbm, nbytes, 2 if beta in (0.0, 1.0) else 5)


def backward_work(student_hbm: Any, teacher_hbm: Any, labels_hbm: Any = None, beta: float = 0.0, **_: Any) -> Work:
    """The work of ``distillation_backward``, whose parameters it takes."""
    functions = 1 if beta == 1.0 else 2
    vectors = (_RESULTS + (labels_hbm is not None)) * FLOAT32_BYTES * student_hbm.shape[0]
    return _work(student_hbm, 2 * _bytes(student_hbm) + _bytes(teacher_hbm) + vectors, functions)


def forward_trips(student_hbm: Any, **_: Any) -> dict[str, int]:
    """How often the loop of the forward runs at most: when every row of a core, of a part of them, is computed anew.

    To be asked while the kernel runs, which knows how many cores there are.
    """
    own = positions_of_core(student_hbm.shape[0], nl.num_programs(), 0)
    return {"recompute_rows": most_trips(min(own, BATCHES_MAX * ROWS_OF_TILE))}


def _work(student_hbm: Any, nbytes: int, functions: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    return Work(nbytes, exponentials=functions * prod(student_hbm.shape), dtype=as_dtype(student_hbm.dtype))


def _bytes(tensor_hbm: Any) -> int:
    from nkilib.simulator.terms.dtypes import as_dtype

    return prod(tensor_hbm.shape) * as_dtype(tensor_hbm.dtype).itemsize
