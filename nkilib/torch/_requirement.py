# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The releases of PyTorch that this package supports. Importing this module raises an error for other releases."""

from __future__ import annotations

from typing import Final

from nkilib.base.installation import extra_remedy
from nkilib.core.host.requirement import Requirement

# The oldest that the tests run. Older ones cannot trace all of nkilib.torch: under 2.11 on Python 3.12, torch.compile
# with fullgraph=True ends with "Attempted to call function marked as skipped".
REQUIREMENT: Final = Requirement("nkilib.torch", "torch", (2, 13), extra_remedy("torch"))

REQUIREMENT.check()
