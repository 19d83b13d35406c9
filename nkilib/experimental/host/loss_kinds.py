"""The registry of losses: all kinds, in the order of the pages."""

from __future__ import annotations

from typing import Final

from nkilib.experimental.loss.elementwise.host import kinds as elementwise
from nkilib.loss_kind import LossKind

LOSS_KINDS: Final[tuple[LossKind, ...]] = (*elementwise.KINDS,)
