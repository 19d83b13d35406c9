# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Shapes broadcast as torch has it, and errors say which do not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nkilib.torch import mse_loss
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller

CALLER = Caller("loss", "input", "input", "torch")


@given(shapes=st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3), min_size=1, max_size=3))
def test_the_shapes_of_torch(shapes: list[list[int]]) -> None:
    named = {str(number): torch.Size(shape) for number, shape in enumerate(shapes)}
    try:
        expected = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        with pytest.raises(RuntimeError, match=r"^loss: shapes must broadcast, and sizes of dimension -\d do not, got"):
            broadcast_shape(CALLER, named)
    else:
        assert broadcast_shape(CALLER, named) == expected


def test_a_loss_says_which_shapes_do_not_broadcast() -> None:
    expected = (
        r"^mse_loss: shapes must broadcast, and sizes of dimension -2 do not, got input \(3, 4\), target \(5, 4\); "
        r"reshape them$"
    )
    with pytest.raises(RuntimeError, match=expected):
        mse_loss(torch.zeros(3, 4), torch.zeros(5, 4))
