# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Features that not all versions of PyTorch that the tests may run with have."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

linear_only = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="PyTorch before 2.13")
