# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""PyTorch's own samples of ``cross_entropy`` and its module, in every type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nkilib.torch import CrossEntropyLoss, cross_entropy
from tests.torch.opinfo import DTYPES, Checked, Difference, module_samples, op_samples
from tests.torch.reduced import SUMS_OF_PYTORCH

_IS_ROUNDED = Difference(
    "losses are float32 whatever the type of the logits",
    lambda sample: sample.dtype != torch.float32,
    result_dtype=torch.float32,
)
_NAME = "nn.functional.cross_entropy"


def _checked(ours: Any, theirs: Any, dtype: torch.dtype) -> Checked:
    return Checked(ours, theirs, values=SUMS_OF_PYTORCH, differences=[_IS_ROUNDED] if dtype != torch.float32 else [])


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples(dtype: torch.dtype) -> None:
    of_function = _checked(cross_entropy, F.cross_entropy, dtype)
    of_function.check(op_samples(_NAME, dtype))
    of_function.check_each_difference_is_met(op_samples(_NAME, dtype))
    _checked(CrossEntropyLoss, nn.CrossEntropyLoss, dtype).check(module_samples("CrossEntropyLoss", dtype))


def test_float64_is_refused_with_the_remedy() -> None:
    Checked(cross_entropy, F.cross_entropy).check_float64_is_refused(op_samples(_NAME, torch.float64))
