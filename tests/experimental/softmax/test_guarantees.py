# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels state what they promise; what it says of bits is held in ``test_rows`` and ``test_columns``."""

from __future__ import annotations

import pytest

from nkilib.base.guarantee import guarantee_stated_for
from nkilib.experimental.softmax.profiling import profile_softmax_launch
from nkilib.experimental.softmax.tensors import Kind
from tests.experimental.softmax.softmax_checks import KERNELS, Kernel


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_states_its_guarantee(kernel: Kernel) -> None:
    result = guarantee_stated_for(kernel.function)
    assert result is not None and result.deterministic and result.same_bits_on_cores and result.workspace == "0"
    assert result.in_place == ("grad_hbm" if kernel.is_backward else None)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("columns", [7, 700, 9000, 262144])
def test_every_element_crosses_hbm_once(kind: Kind, columns: int) -> None:
    elements = 128 * 2 * columns
    for direction, read in (("forward", 1), ("backward", 2)):
        profiled = profile_softmax_launch((256, columns), -1, "bfloat16", kind, direction)
        assert profiled.hbm_read_bytes == 2 * read * elements and profiled.hbm_written_bytes == 2 * elements
