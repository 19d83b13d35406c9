# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the kernels work on, whatever the tiling: every tensor that is needed crosses HBM once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from nkilib.base.work import StatesWork, Work


def forward_work(*names: str, functions: int = 0) -> StatesWork:
    """Of a forward that streams the tensors of these names, with so many activation functions an element."""

    def work(reduction: str, dtype: Any, **arguments: Any) -> Work:
        given = _given(names, arguments)
        result = given[0].dtype if dtype is None else dtype
        return _work(given[0], given, [result] if reduction == "none" else [], functions)

    return work


def backward_work(
    *names: str,
    needed: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None,
    functions: int = 0,
    flags: tuple[str, ...] = (),
) -> StatesWork:
    """Of a backward.

    Args:
        names: of the tensors.
        needed: those that the gradients of some tensors are made of; None: all.
        functions: activation functions an element.
        flags: arguments of the kernel, which needs the functions only where one of them is set; none: always.
    """

    def work(grad_loss_hbm: Any, reduction: str, **arguments: Any) -> Work:
        wanted = tuple(name for name in names if arguments.get(f"grad_{name}_wanted", name == names[0]))
        read = _given(names if needed is None else needed(wanted), arguments)
        of_each = [each.dtype for each in _given(wanted, arguments)]
        of_each += [grad_loss_hbm.dtype] if reduction == "none" else []
        first = arguments[f"{names[0]}_hbm"]
        return _work(first, read, of_each, functions if not flags or any(arguments[name] for name in flags) else 0)

    return work


def forward_backward_work(*names: str, functions: int = 0) -> StatesWork:
    """Of losses and gradients in one pass over the tensors of these names."""

    def work(grad_loss_hbm: Any, reduction: str, dtype: Any, **arguments: Any) -> Work:
        given = _given(names, arguments)
        wanted = tuple(name for name in names if arguments[f"grad_{name}_wanted"])
        of_each = [each.dtype for each in _given(wanted, arguments)]
        of_each += [given[0].dtype if dtype is None else dtype, grad_loss_hbm.dtype] if reduction == "none" else []
        return _work(given[0], given, of_each, functions)

    return work


def _given(names: tuple[str, ...], arguments: Mapping[str, Any]) -> list[Any]:
    found = [arguments[f"{name}_hbm"] for name in names]
    return [each for each in found if each is not None]


def _work(first: Any, read: list[Any], of_each: list[Any], functions: int) -> Work:
    """Of a launch.

    Args:
        first: the tensor that says how many elements there are.
        read: tensors, some of which may be weights of rows or of columns.
        of_each: types of what else there is for each element.
        functions: activation functions an element.
    """
    from nkilib.simulator.terms.dtypes import as_dtype

    elements = prod(first.shape)
    nbytes = elements * sum(as_dtype(dtype).itemsize for dtype in of_each)
    nbytes += sum(prod(each.shape) * as_dtype(each.dtype).itemsize for each in read)
    return Work(nbytes, exponentials=functions * elements, dtype=as_dtype(first.dtype))
