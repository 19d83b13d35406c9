# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The code blocks of the pages that show how losses are composed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how_to"
RECIPES_PAGES = (HOW_TO / "loss_recipes.md", HOW_TO / "distillation_recipes.md")
CONTRASTIVE_PAGE = HOW_TO / "contrastive_recipes.md"
REINFORCEMENT_PAGE = HOW_TO / "reinforcement_learning.md"


def python_blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page, in its order."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def is_launching(block: str) -> bool:
    """Whether a block runs kernels, in place of only defining losses of log-probabilities."""
    return "import nkilib" in block or "from nkilib" in block


def names_of(page: Path, text: str) -> dict[str, Any]:
    """Run the only block of a page that has this text, with seeded random numbers, and return its names."""
    (source,) = (block for block in python_blocks(page) if text in block)
    namespace: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(source, namespace)
    return namespace
