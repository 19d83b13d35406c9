# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How long a test waits for a process, a thread or a rank: a limit is for a hang, and no slow machine reaches it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

HANG_SECONDS: Final = 600.0
"""What takes longer hangs. A test of a limit itself gives a short one of its own."""

RANKS_WAIT: Final = timedelta(seconds=HANG_SECONDS / 2)
"""How long a rank waits for the others: it says for whom before its own process is ended."""
