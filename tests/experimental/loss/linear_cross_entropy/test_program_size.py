"""The programs of the kernels stay short whatever the vocabulary is: loops of the device have one copy of a body."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks._program_size import program_instructions
from nkilib.experimental.loss.profiling import profile_linear_launch

FEW, MANY = 30_000, 60_000
DIRECTIONS = ("forward", "backward", "forward_backward")


def program(positions: int, features: int, classes: int, direction: str, dtype: str = "bfloat16") -> int:
    """Instructions of a core."""
    return program_instructions(partial(profile_linear_launch, positions, features, classes, dtype, direction))


def test_of_a_large_vocabulary() -> None:
    assert program(256, 4096, 65536, "backward") <= FEW


@pytest.mark.sweep
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_whatever_the_vocabulary_is(direction: str) -> None:
    assert max(program(512, 512, classes, direction) for classes in (128256, 262144)) <= FEW


@pytest.mark.sweep
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("features", [1024, 2048, 4096, 8192])
def test_of_4096_positions(features: int, direction: str) -> None:
    assert program(4096, features, 128256, direction) <= FEW


@pytest.mark.sweep
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("features", [1024, 4096, 8192])
def test_of_16384_positions(features: int, direction: str) -> None:
    assert program(16384, features, 128256, direction) <= MANY
