# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory of the loss that the README shows: the command at a small size, and the figures in the README."""

from __future__ import annotations

import re

from benchmarks.loss_memory import MEBI, SIZES, WAYS, Sizes, measure
from tests.fresh_python import CHECKOUT


def test_each_way_holds_as_many_tensors_of_the_size_of_the_logits_as_it_says() -> None:
    sizes = Sizes(1024, 32, 32_128)
    grown = {name: measure(sizes, name).growth for name in WAYS}
    for name in ("stock", "inplace"):
        held = WAYS[name].copies * sizes.logits_bytes(WAYS[name].itemsize)
        assert 0.95 * held <= grown[name] <= held + 100 * MEBI, (name, grown)
    assert grown["linear"] <= 2 * sizes.logits_bytes(2), grown


def test_the_readme_has_the_figures_of_the_command() -> None:
    page = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    for way in WAYS.values():
        assert re.search(rf"\| `?{re.escape(way.name)}`?.*\| {way.measured:,} MiB \|", page), way.name
        assert way.measured > way.copies * SIZES.logits_bytes(way.itemsize) // MEBI - 1
    assert all(f"{size:,}" in page for size in (SIZES.positions, SIZES.features, SIZES.classes))
