# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The work of the kernels of elementwise losses, whatever the tiling: every tensor that is needed crosses HBM
once.

For host code. The simulator is imported only when a profile asks for the work: on hardware the kernels do
not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from nkilib.base.work import StatesWork, Work


def forward_work(*names: str, functions: int = 0) -> StatesWork:
    """Return a function that computes the work of a forward from its arguments.

    The forward streams the named tensors; ``functions`` is the number of activation functions per element.
    """

    def work(reduction: str, dtype: Any, **arguments: Any) -> Work:
        tensors = _present_tensors(names, arguments)
        result = tensors[0].dtype if dtype is None else dtype
        return _work(tensors[0], tensors, [result] if reduction == "none" else [], functions)

    return work


def backward_work(
    *names: str,
    needed: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None,
    functions: int = 0,
    flags: tuple[str, ...] = (),
) -> StatesWork:
    """Return a function that computes the work of a backward from its arguments.

    Args:
        names: the names of the tensors of the loss.
        needed: a function that returns, for the names of tensors, the names of those from which their gradients
            are computed; None means that all are needed.
        functions: the number of activation functions per element.
        flags: names of arguments of the kernel, which needs the activation functions only if one of them is
            True; empty means always.
    """

    def work(grad_loss_hbm: Any, reduction: str, **arguments: Any) -> Work:
        wanted = tuple(name for name in names if arguments.get(f"grad_{name}_wanted", name == names[0]))
        read = _present_tensors(names if needed is None else needed(wanted), arguments)
        of_each = [tensor.dtype for tensor in _present_tensors(wanted, arguments)]
        of_each += [grad_loss_hbm.dtype] if reduction == "none" else []
        first = arguments[f"{names[0]}_hbm"]
        return _work(first, read, of_each, functions if not flags or any(arguments[name] for name in flags) else 0)

    return work


def forward_backward_work(*names: str, functions: int = 0) -> StatesWork:
    """Return a function that computes the work of a fused forward-backward, one pass over the named tensors."""

    def work(grad_loss_hbm: Any, reduction: str, dtype: Any, **arguments: Any) -> Work:
        tensors = _present_tensors(names, arguments)
        wanted = tuple(name for name in names if arguments[f"grad_{name}_wanted"])
        of_each = [tensor.dtype for tensor in _present_tensors(wanted, arguments)]
        of_each += [tensors[0].dtype if dtype is None else dtype, grad_loss_hbm.dtype] if reduction == "none" else []
        return _work(tensors[0], tensors, of_each, functions)

    return work


def _present_tensors(names: tuple[str, ...], arguments: Mapping[str, Any]) -> list[Any]:
    tensors = [arguments[f"{name}_hbm"] for name in names]
    return [tensor for tensor in tensors if tensor is not None]


def _work(first: Any, read: list[Any], of_each: list[Any], functions: int) -> Work:
    """Return the work of a launch.

    Args:
        first: the tensor whose shape gives the number of elements.
        read: the tensors that are read, some of which may be weights per row or per column.
        of_each: the type of each further number per element that is read or written, such as a gradient.
        functions: the number of activation functions per element.
    """
    from nkilib.simulator.terms.dtypes import as_dtype

    elements = prod(first.shape)
    nbytes = elements * sum(as_dtype(dtype).itemsize for dtype in of_each)
    nbytes += sum(prod(tensor.shape) * as_dtype(tensor.dtype).itemsize for tensor in read)
    return Work(nbytes, exponentials=functions * elements, dtype=as_dtype(first.dtype))
