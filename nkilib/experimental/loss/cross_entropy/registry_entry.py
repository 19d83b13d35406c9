# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registry entry of cross-entropy of logits: the kernels, their guarantees, and their work.

:data:`CROSS_ENTROPY` is the entry; the kernels to launch wrap those of :mod:`.kernels`.

The work (bytes that cross HBM, and operations) does not depend on the tiling; the performance model derives from it how
fast the hardware could be.

For host code, not for kernels. The minimum of work for logits [N, V]:

- forward: every logit crosses HBM once; one exponential per element, and with ``exact_maximum=True`` one maximum per
  element;
- backward: every logit crosses HBM once, and every element of the gradient; one exponential per element. The target of
  a row changes one element only, so it needs no pass over all elements.

The simulator is imported only when a profile asks for the work: the kernels on hardware do not need the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.cores import positions_of_core
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Family, ModelledLaunch, SizedLoss, TensorSize, launch_tensors, tensor_bytes
from nkilib.core.rows.recomputation import most_trips
from nkilib.experimental.loss.cross_entropy import kernels
from nkilib.experimental.loss.cross_entropy.tiling import choose_tiling
from nkilib.nki import nl

_SHAPE: Final = (4096, 32128)
_TIME_LIMITS: Final = {"bfloat16": 1.25, "float32": 1.15}
_INDEX_BYTES = 4  # a target is int32
_FORWARD_NOTES = (
    "logits are rounded to dtype on loading; exact_maximum=None selects the form by the number of batches per core; "
    "with exact_maximum=True or False, one core and two give bitwise identical results"
)
_WORKSPACE = "512 (ceil(N / positions_per_batch) + 1); 0 with exact_maximum=True"
_BACKWARD_NOTES = "logits are rounded to dtype on loading; at the target, 1 is subtracted from p in float32"


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of a tensor of a launch on logits [N, V], by the tensor's name.

    The targets are classes, int32 [N]; every tensor but the logits and the targets is float32 [N].

    Args:
        tensor: the name of the tensor without ``_hbm``.
        shape: (N, V).
        options: not used.
    """
    if tensor == "logits":
        return TensorSize(shape)
    return TensorSize(shape[:1], "int32" if tensor == "targets" else "float32")


def forward_workspace_bytes(
    logits_hbm: Any, positions_per_batch: int = PARTITIONS, exact_maximum: bool | None = None, cores: int = 1, **_: Any
) -> int:
    """Return the bytes of HBM in which the form with a shift keeps the targets' logits for recomputed rows.

    The result is 0 only if ``exact_maximum`` is True.
    """
    if exact_maximum:
        return 0
    batches = div_ceil(logits_hbm.shape[0], positions_per_batch) + cores - 1  # a core may have a short one of its own
    return FLOAT32_BYTES * PARTITIONS * batches


def _maxima(elements: int, itemsize: int, exact_maximum: bool | None) -> int:
    """Return how many elements Vector compares for maxima; 0 unless ``exact_maximum`` is True. In 16-bit types GpSimd
    halves a share of the columns first.
    """
    from nkilib.experimental.loss.cross_entropy.launch import BESIDE_EXPONENTIALS

    if not exact_maximum:
        return 0
    return elements if itemsize == FLOAT32_BYTES else round(elements * (1.0 - BESIDE_EXPONENTIALS.share / 2))


def forward_work(
    logits_hbm: Any, dtype: Any, lse_dtype: Any = None, exact_maximum: bool | None = None, **_: Any
) -> Work:
    """Return the work of ``cross_entropy_forward``, from the kernel's arguments."""
    from nkilib.simulator.terms.dtypes import as_dtype

    positions, vocab_size = logits_hbm.shape
    tile = as_dtype(dtype)
    lse = tile if lse_dtype is None else as_dtype(lse_dtype)
    of_position = _INDEX_BYTES + tile.itemsize + lse.itemsize  # target in; loss and log-sum-exp out
    return Work(
        hbm_bytes=positions * (vocab_size * as_dtype(logits_hbm.dtype).itemsize + of_position),
        exponentials=positions * vocab_size,
        maxima=_maxima(positions * vocab_size, tile.itemsize, exact_maximum),
        dtype=tile,
    )


def backward_work(logits_hbm: Any, lse_state_hbm: Any, dtype: Any, inplace: bool, **_: Any) -> Work:
    """Return the work of ``cross_entropy_backward``, from the kernel's arguments."""
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
    """Return the work of ``extended_cross_entropy_forward``, from the kernel's arguments.

    Class probabilities and weights cross HBM once. A cap takes one more activation function per element, an argmax one
    maximum.
    """
    from nkilib.simulator.terms.dtypes import as_dtype

    positions, vocab_size = logits_hbm.shape
    elements = positions * vocab_size
    results = 4 * FLOAT32_BYTES * positions  # loss, log-sum-exp, target's logit and weight
    return Work(
        hbm_bytes=tensor_bytes(logits_hbm, targets_hbm, class_weight_hbm) + results,
        exponentials=elements if logit_softcap is None else 2 * elements,
        maxima=elements if with_argmax else _maxima(elements, as_dtype(dtype).itemsize, exact_maximum),
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
    """Return the work of ``extended_cross_entropy_backward``, from the kernel's arguments."""
    from nkilib.simulator.terms.dtypes import as_dtype

    positions, vocab_size = logits_hbm.shape
    elements = positions * vocab_size
    gradient = as_dtype(logits_hbm.dtype) if inplace else as_dtype(dtype)
    vectors = 2 * FLOAT32_BYTES * positions  # log-sum-exp and gradient of the loss
    vectors += tensor_bytes(targets_hbm, class_weight_hbm, grad_lse_hbm, grad_logprob_hbm)
    return Work(
        hbm_bytes=tensor_bytes(logits_hbm) + elements * gradient.itemsize + vectors,
        exponentials=elements if logit_softcap is None else 2 * elements,
        dtype=as_dtype(dtype),
    )


def forward_trips(logits_hbm: Any, **_: Any) -> dict[str, int]:
    """Return the largest number of iterations of the forward's loop over recomputed rows, by the name of the loop.

    The number is for a core all of whose rows are recomputed. Call this while the kernel runs, because the number of
    cores is known only then.
    """
    return {"recompute_rows": most_trips(positions_of_core(logits_hbm.shape[0], nl.num_programs(), 0))}


def _arguments(direction: str, dtype: str) -> dict[str, Any]:
    from nkilib.simulator.terms.dtypes import as_dtype

    kernel: Callable[..., Any] = kernels.extended_cross_entropy_forward
    if direction == "backward":
        kernel = kernels.extended_cross_entropy_backward
    tiling = choose_tiling(*_SHAPE, as_dtype(dtype), direction, extended=True)
    tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, _SHAPE, {}), dtype)
    return {**tensors, "dtype": as_dtype(dtype), **tiling._asdict()}


cross_entropy_forward = launchable(
    kernels.cross_entropy_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=False,
        workspace=_WORKSPACE,
        in_place=None,
        error="loss: 16 u max(1, m - x_t, log d); lse: 16 u max(1, |m|, log d); u = 2^-23, plus the rounding of the "
        "result",
        workspace_bytes=forward_workspace_bytes,
        notes=_FORWARD_NOTES,
    ),
    forward_work,
    forward_trips,
)
cross_entropy_backward = launchable(
    kernels.cross_entropy_backward,
    Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="logits_hbm",
        error=(
            "scale u (p (8 + |x - lse| + |lse| + |log scale|) + 2 (1 - p) at the target), u = 2^-23, plus the "
            "rounding of the result"
        ),
        notes=_BACKWARD_NOTES,
    ),
    backward_work,
)
extended_cross_entropy_forward = launchable(
    kernels.extended_cross_entropy_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=False,
        workspace=_WORKSPACE,
        in_place=None,
        error=(
            "loss: 16 u (F max(1, log d) + sum f (m - z)), F the sum of the factors f; lse: 16 u max(1, |m|, log d); "
            "u = 2^-23; with a logit softcap c, 4 u c more for each z; argmax is exact"
        ),
        workspace_bytes=forward_workspace_bytes,
        notes=_FORWARD_NOTES,
    ),
    extended_forward_work,
    forward_trips,
)
extended_cross_entropy_backward = launchable(
    kernels.extended_cross_entropy_backward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="logits_hbm",
        error=(
            "u (S p (12 + |z - lse| + |lse| + 4 c) + 4 |r| + 4 |dz|), u = 2^-23, S the sum of the magnitudes of all "
            "terms in the factor of p, r the amount subtracted from the product of p and its factor, c the logit "
            "softcap or 0; plus the rounding of the result"
        ),
        notes=_BACKWARD_NOTES,
    ),
    extended_backward_work,
)

CROSS_ENTROPY: Final = SizedLoss(
    name="cross_entropy",
    module="CrossEntropyLoss",
    forward=extended_cross_entropy_forward,
    backward=extended_cross_entropy_backward,
    formula="log sum_j exp(x_j) - x_t",
    derivative="exp(x) / sum_j exp(x_j) - [j = t]",
    differentiated=("input", "target", "weight"),
    options=("weight", "ignore_index", "label_smoothing"),
    tests=("tests/experimental/loss/cross_entropy", "tests/torch/functions/cross_entropy"),
    edges="without a valid target the mean is NaN",
    differences="the gradients of class probabilities, and of weights given with them, are computed by PyTorch's "
    "operators; the mean is NaN where the weights sum to 0; weights must be finite; there are further options and "
    "results",
    launches=(
        ModelledLaunch("forward, none", True, partial(_arguments, "forward"), _TIME_LIMITS, bounded_by=None),
        ModelledLaunch("backward", False, partial(_arguments, "backward"), _TIME_LIMITS),
    ),
    size_of=size_of,
    family=Family.VOCABULARY,
)
