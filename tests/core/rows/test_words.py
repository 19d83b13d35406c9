# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows`` is for any kernel over rows: it knows nothing of the one that it was first written for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nkilib.core.rows

MODULES = sorted(Path(nkilib.core.rows.__file__).parent.glob("*.py"))
# In names, comments and messages. Entropies and log-sum-exps are of any softmax, thus not here.
WORDS = (
    "cross.?entropy",
    "loss",
    "logit",
    "vocab",
    "label",
    "token",
    "ignore",
    "smoothing",
    "soft.?cap",
    "z.?loss",
    "gradient",
    "probabilit",
    "shard",
    "nats",
    "target",
    "(?<!data)class(?!method)",
)
# The one generation that a kernel is built for is its target in all of NKI, and Python has classes.
OTHER_MEANINGS = ("the target is trn1", ":class:", "class _?[A-Z]\\w+[:(]")


def words_of_one_kernel(text: str) -> list[str]:
    """The lines that say such a word."""
    for meaning in OTHER_MEANINGS:
        text = re.sub(meaning, "", text)
    return [line for line in text.splitlines() if re.search("|".join(WORDS), line, re.IGNORECASE)]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_no_module_mentions_cross_entropy(module: Path) -> None:
    assert words_of_one_kernel(module.read_text(encoding="utf-8")) == []


def test_nothing_is_imported_from_kernels() -> None:
    assert len(MODULES) > 8
    for module in MODULES:
        assert "experimental" not in module.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line", ["the vocabulary size", "logits_hbm", "a class of the row", "CrossEntropy", "targets_sbuf", "the loss"]
)
def test_the_words_are_found(line: str) -> None:
    assert words_of_one_kernel(f"class Stream:\n    @classmethod\n    def f(self): ...  # {line}\n") != []


def test_other_words_are_not() -> None:
    assert words_of_one_kernel('@dataclass(frozen=True)\nclass Stream:\n    """Entropy, log-sum-exp."""\n') == []
