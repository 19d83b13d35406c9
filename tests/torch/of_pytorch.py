# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the versions of PyTorch that the tests may run with do not all have."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

linear_only = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="PyTorch before 2.13")
