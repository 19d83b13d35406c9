# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The work of the kernels, whatever the tiling: each tensor crosses HBM once, and each element takes one exponential.

For host code. The backward of softmax needs no exponential. The simulator is imported only where a profile asks for the
work: on hardware the kernels run without it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work


def softmax_forward_work(x_hbm: Any, dtype: Any, **_: Any) -> Work:
    """Return the work of ``softmax_forward`` and of ``log_softmax_forward``, whose parameters it takes."""
    return _work(x_hbm, [x_hbm.dtype, x_hbm.dtype if dtype is None else dtype], has_exponentials=True)


def softmax_backward_work(grad_hbm: Any, output_hbm: Any, dtype: Any, **_: Any) -> Work:
    """Return the work of ``softmax_backward``, whose parameters it takes."""
    return _work(grad_hbm, _of_backward(grad_hbm, output_hbm, dtype), has_exponentials=False)


def log_softmax_backward_work(grad_hbm: Any, output_hbm: Any, dtype: Any, **_: Any) -> Work:
    """Return the work of ``log_softmax_backward``, whose parameters it takes."""
    return _work(grad_hbm, _of_backward(grad_hbm, output_hbm, dtype), has_exponentials=True)


def _of_backward(grad_hbm: Any, output_hbm: Any, dtype: Any) -> list[Any]:
    return [grad_hbm.dtype, output_hbm.dtype, grad_hbm.dtype if dtype is None else dtype]


def _work(like_hbm: Any, streamed: list[Any], has_exponentials: bool) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    elements = prod(like_hbm.shape)
    return Work(
        hbm_bytes=elements * sum(as_dtype(dtype).itemsize for dtype in streamed),
        exponentials=elements if has_exponentials else 0,
        dtype=as_dtype(streamed[0]),
    )
