# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The packages that collection must not wait for, each with the file at whose collection it was first there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

# PyTorch takes a second, which only tests/torch may cost; each of the others takes about that again, beside it.
SLOW: Final = ("torch", "torch._dynamo", "torch.distributed.tensor", "transformers")
first_with: dict[str, Path | None] = {}


def note_imports(path: Path | None) -> None:
    """Remember what is there after a file or folder was collected; None stands for what was there before."""
    for name in SLOW:
        if sys.modules.get(name) is not None:
            first_with.setdefault(name, path)
