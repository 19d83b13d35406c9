"""What the kernels work on, whatever the tiling: every tensor that is needed crosses HBM once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.work import Work


def kl_div_forward_work(input_hbm: Any, target_hbm: Any, reduction: str, dtype: Any, **_: Any) -> Work:
    """The work of ``kl_div_forward``, whose parameters it takes: one activation function an element."""
    result = input_hbm.dtype if dtype is None else dtype
    streamed = [input_hbm.dtype, target_hbm.dtype, *([result] if reduction == "none" else [])]
    return _work(input_hbm, streamed)


def kl_div_backward_work(
    input_hbm: Any,
    target_hbm: Any,
    grad_loss_hbm: Any,
    reduction: str,
    log_target: bool,
    grad_input_wanted: bool,
    grad_target_wanted: bool,
    **_: Any,
) -> Work:
    """The work of ``kl_div_backward``, whose parameters it takes: the input is needed for the target's gradient."""
    streamed = [target_hbm.dtype, *([grad_loss_hbm.dtype] if reduction == "none" else [])]
    streamed += [input_hbm.dtype] if grad_input_wanted else []
    streamed += [input_hbm.dtype, target_hbm.dtype] if grad_target_wanted else []
    return _work(input_hbm, streamed, has_function=log_target or grad_target_wanted)


def _work(like_hbm: Any, streamed: list[Any], has_function: bool = True) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    elements = prod(like_hbm.shape)
    nbytes = sum(as_dtype(dtype).itemsize for dtype in streamed)
    return Work(elements * nbytes, exponentials=elements if has_function else 0, dtype=as_dtype(like_hbm.dtype))
