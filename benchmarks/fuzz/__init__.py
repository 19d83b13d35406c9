# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Random calls of every function of nkilib.torch with default tilings, compared with float64: ``make fuzz``."""

from unittest.mock import patch

from nkilib.core.host.requirement import Requirement

# Only graphs of torch.compile need the PyTorch that nkilib.torch asks for. No call here is compiled, and the machine
# that has many cores for a fuzz may have an older one.
with patch.object(Requirement, "check", lambda requirement: None):
    import nkilib.torch  # noqa: F401
