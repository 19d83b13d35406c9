"""The kernels, and every function they reach, are written in the NKI language."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from nkilib.experimental import loss
from tests.language import child
from tests.language.walker import walk

KERNELS: Final = (
    "cross_entropy_forward",
    "cross_entropy_backward",
    "extended_cross_entropy_forward",
    "extended_cross_entropy_backward",
)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_nki(name: str) -> None:
    assert walk(getattr(loss, name)).messages == []


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_nki_on_hardware(name: str, tmp_path: Path) -> None:
    """There they reach what `nkilib.nki` puts in the place of the simulator's own functions."""
    view = child.run("hardware_view", loss.__name__, name, tmp_path)

    assert view["refusals"] == []
    assert set(view["forms"]) == {*walk(getattr(loss, name)).functions, "nkilib.nki.explain_index"}


@pytest.mark.parametrize("name", KERNELS)
def test_the_walk_reaches_the_helpers(name: str) -> None:
    """A walk that reached nothing would find nothing to refuse."""
    reached = list(walk(getattr(loss, name)).functions)

    entry = f"nkilib.experimental.loss.{'extended_inline' if name.startswith('extended') else 'inline'}"
    assert reached[0] == f"{entry}.{name}"
    modules = {each.rpartition(".")[0] for each in reached}
    assert modules >= {
        "nkilib.core.cores",
        "nkilib.core.tiling",
        entry,
        "nkilib.experimental.loss.sbuf_plan",
        "nkilib.experimental.loss.target_access",
        "nkilib.experimental.loss.validation",
    }
    assert not [module for module in modules if module.startswith("nkilib.simulator")]
