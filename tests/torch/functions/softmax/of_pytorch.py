# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Both functions beside PyTorch's, with what their results may be off by."""

from __future__ import annotations

from typing import Final

import torch.nn.functional as F

import nkilib.torch
from tests.torch.opinfo import Budget, Checked

# A sum of float32 of few terms, an exponential and a logarithm of the target: some roundings of float32. The backward
# takes the rounded result y: dx = y (dy - sum(y dy)) has the roundings of y twice, and dx = dy - exp(y) sum(dy) that of
# y times the sum of a dozen dy.
VALUES: Final = Budget(of_type=0.0, of_float32=16.0)
GRADIENTS: Final = Budget(of_type=16.0, of_float32=32.0)
CHECKED: Final = {
    "softmax": Checked(nkilib.torch.softmax, F.softmax, VALUES, GRADIENTS),
    "log_softmax": Checked(nkilib.torch.log_softmax, F.log_softmax, VALUES, GRADIENTS),
}
NAMES: Final = tuple(CHECKED)
