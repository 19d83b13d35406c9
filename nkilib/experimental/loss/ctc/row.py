# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Registry entries of connectionist temporal classification: the kernels, their guarantees and their work.

The forward reads the log-probabilities and writes the alphas; the backward reads both and writes the
gradient. The recursion is bound by latency, which the work does not include: each time step waits for the
previous one. For host code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.base.work import Work
from nkilib.core.host.launchable import launchable
from nkilib.core.host.sized_loss import SCALAR, SizedLoss, TensorSize, tensor_bytes
from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.experimental.loss.ctc import kernels


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of a tensor of a launch on log-probabilities [T, N, C].

    The tensors include labels, lengths, and the results that the forward keeps for the backward. The option ``labels``
    is the number of labels of the longest target.
    """
    steps, sequences, _ = shape
    sizes = {
        "log_probs": TensorSize(shape),
        "targets": TensorSize((sequences, options["labels"]), "int32"),
        "input_lengths": TensorSize((sequences,), "int32"),
        "target_lengths": TensorSize((sequences,), "int32"),
        "nll": TensorSize((sequences,), "float32"),
        "alpha": TensorSize((steps, sequences, 2 * options["labels"] + 1), "float32"),
        "grad_loss": SCALAR,
    }
    return sizes[tensor]


def forward_work(log_probs_hbm: Any, targets_hbm: Any, **_: Any) -> Work:
    """Return the work of ``ctc_loss_forward``, whose parameters it takes."""
    return _work(log_probs_hbm, targets_hbm, 1)


def backward_work(log_probs_hbm: Any, targets_hbm: Any, **_: Any) -> Work:
    """Return the work of ``ctc_loss_backward``, whose parameters it takes.

    The log-probabilities are read, and a gradient of their size is written.
    """
    return _work(log_probs_hbm, targets_hbm, 2)


def _work(log_probs_hbm: Any, targets_hbm: Any, passes: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    steps, sequences, _ = log_probs_hbm.shape
    states = 1 if targets_hbm is None else 2 * targets_hbm.shape[1] + 1
    alphas = steps * sequences * states * FLOAT32_BYTES
    return Work(passes * tensor_bytes(log_probs_hbm) + alphas, dtype=as_dtype(log_probs_hbm.dtype))


ctc_loss_forward = launchable(
    kernels.ctc_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="2 u times the logarithm for each time step, u = 2^-23",
        notes="a sum adds 32 losses at a time, in an order that depends only on the shape; alpha is an output",
    ),
    forward_work,
)
ctc_loss_backward = launchable(
    kernels.ctc_loss_backward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="6 u times the logarithm for each time step, relative to the occupancy of a class, plus 8 u times the "
        "probability, plus the rounding of the gradient; u = 2^-23",
        notes="the groups of sequences, blocks of states and chunks of time steps depend only on shape and type",
    ),
    backward_work,
)

CTC: Final = SizedLoss(
    name="ctc_loss",
    module="CTCLoss",
    forward=ctc_loss_forward,
    backward=ctc_loss_backward,
    formula="-log sum of prod_t p_t(a_t) over alignments a of the target",
    derivative="exp(x) - occupancy, as in PyTorch, for x from log_softmax",
    differentiated=("log_probs",),
    options=("blank", "zero_infinity"),
    tests=("tests/experimental/loss/ctc", "tests/torch/functions"),
    edges="without an alignment the loss is inf and the gradient NaN, or both are 0 with zero_infinity; a class of "
    "probability 0 that is not a label has gradient 0, where PyTorch's is NaN",
    differences="bfloat16 and float16 are accepted; a label that is not a class has probability 0; gradients are those "
    "of the loss even where the blank is among the labels; the numbers of classes and labels are limited, see below",
    size_of=size_of,
)
