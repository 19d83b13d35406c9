"""Which releases of PyTorch this package runs on; importing it refuses others."""

from __future__ import annotations

from typing import Final

from nkilib.core.host.requirement import Requirement

# The first whose torch.compiler.disable takes a reason.
REQUIREMENT: Final = Requirement("nkilib.torch", "torch", (2, 8), "install it with pip install 'nkilib[torch]'")

REQUIREMENT.check()
