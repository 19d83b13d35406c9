# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views of any layout: any rank, any axis, permuted, in a kernel that calls the functions."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.softmax import inline
from nkilib.nki import nki, nl
from tests.experimental.softmax.softmax_checks import KERNELS, Kernel


@nki.jit
def _forward_of_view(x: nl.NkiTensor, dims: tuple[int, ...], axis: int) -> nl.NkiTensor:
    return inline.softmax_forward(x.permute(dims), axis)


@nki.jit
def _backward_of_view(grad: nl.NkiTensor, output: nl.NkiTensor, dims: tuple[int, ...], axis: int) -> nl.NkiTensor:
    return inline.log_softmax_backward(grad.permute(dims), output, axis)


@pytest.mark.parametrize("dims", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_permuted_view(dims: tuple[int, ...], axis: int) -> None:
    forward, backward = KERNELS["softmax_forward"], KERNELS["log_softmax_backward"]
    (x,) = forward.inputs((4, 3, 5), np.float32)
    assert forward.worst_error(_forward_of_view[2](x, dims, axis), [x.transpose(dims)], axis) <= 1.0
    grad, output = backward.inputs((4, 3, 5), np.float32)
    view = [grad.transpose(dims), np.ascontiguousarray(output.transpose(dims))]
    assert backward.worst_error(_backward_of_view[2](grad, view[1], dims, axis), view, axis) <= 1.0


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("shape", [(5,), (1,), (3, 1), (1, 7), (2, 3, 1, 4), (2, 1, 1, 3, 2, 1, 2, 3)], ids=str)
def test_every_axis_of_every_rank(kernel: Kernel, shape: tuple[int, ...]) -> None:
    for axis in range(-len(shape), len(shape)):
        inputs: list[Any] = kernel.inputs(shape, np.float32, axis=axis)
        result = kernel.function[2](*inputs, axis)
        assert result.shape == shape and kernel.worst_error(result, inputs, axis) <= 1.0
