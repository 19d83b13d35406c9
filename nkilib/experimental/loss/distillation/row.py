# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from logits: the kernels, their guarantees, their tensors, and their work.

The work is stated independently of the tiling: the minimum of HBM traffic, and activation functions. For host code. The
simulator is imported only when a profile asks for the work: on hardware the kernels do not need it.

A KL takes two exponentials per element, forward and backward, except for the backward of KL(student || teacher), which
takes only the student's. Jensen-Shannon takes two for the log-sum-exps, and then both again and a softplus; its
gradient takes the student's exponential and a softplus.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.guarantee import Guarantee
from nkilib.base.work import Work
from nkilib.core.cores import positions_of_core
from nkilib.core.host.launchable import launchable
from nkilib.core.host.sized_loss import tensor_bytes
from nkilib.core.rows.recomputation import BATCHES_MAX, most_trips
from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.core.rows.slots import ROWS_OF_TILE
from nkilib.experimental.loss.distillation import kernels
from nkilib.nki import nl

_RESULTS = 6


def forward_work(student_hbm: Any, teacher_hbm: Any, labels_hbm: Any = None, beta: float = 0.0, **_: Any) -> Work:
    """Return the work of ``distillation_forward``, if each logit is read once; takes the kernel's parameters."""
    nbytes = tensor_bytes(student_hbm, teacher_hbm) + _vector_bytes(student_hbm, labels_hbm)
    return _work(student_hbm, nbytes, 2 if beta in (0.0, 1.0) else 5)


def backward_work(student_hbm: Any, teacher_hbm: Any, labels_hbm: Any = None, beta: float = 0.0, **_: Any) -> Work:
    """Return the work of ``distillation_backward``; the function takes the kernel's parameters."""
    nbytes = tensor_bytes(student_hbm, student_hbm, teacher_hbm) + _vector_bytes(student_hbm, labels_hbm)
    return _work(student_hbm, nbytes, 1 if beta == 1.0 else 2)


def forward_trips(student_hbm: Any, **_: Any) -> dict[str, int]:
    """Return the maximum iterations of the forward's loop: the number when every row of a part of a core is recomputed.

    Call this while the kernel runs, because the number of cores is known only then.
    """
    own = positions_of_core(student_hbm.shape[0], nl.num_programs(), 0)
    return {"recompute_rows": most_trips(min(own, BATCHES_MAX * ROWS_OF_TILE))}


def _vector_bytes(student_hbm: Any, labels_hbm: Any) -> int:
    return int((_RESULTS + (labels_hbm is not None)) * FLOAT32_BYTES * student_hbm.shape[0])


def _work(student_hbm: Any, nbytes: int, functions: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    return Work(nbytes, exponentials=functions * prod(student_hbm.shape), dtype=as_dtype(student_hbm.dtype))


distillation_forward = launchable(
    kernels.distillation_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="u (a_P + a_Q) (2 + E|log(P/Q)|), absolute, with u = 2^-23 and a = 8 + 2 max|x|/T; the KL of "
        "equal logits is 0",
        notes="the chunks depend on V, on the size in bytes of a student logit and of a teacher logit, and on whether "
        "the divergence is a KL or Jensen-Shannon; each piece is summed in the order of the engine's accumulator, then "
        "the sums of the pieces are added",
    ),
    forward_work,
    forward_trips,
)
distillation_backward = launchable(
    kernels.distillation_backward,
    Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="student_hbm",
        error="u (a_P + a_Q) times each term and the upstream gradient, plus the rounding of the result; a as in the "
        "forward",
        notes="the teacher has no gradient",
    ),
    backward_work,
)
