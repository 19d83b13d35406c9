# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replay of every launch that other tests make is bitwise identical; see `tests.replayed_both_ways`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fresh_python import CHECKOUT, with_checkout
from tests.replayed_both_ways import VARIABLE

# Launches that are planned at least, by what is run: a plugin that compares nothing must not pass.
SAMPLE = {
    "tests/core/rows/test_elements.py": 30,
    "tests/simulator/engines/gpsimd/test_across_partitions_topk.py": 1,
    "tests/simulator/engines/vector/test_selection_predicated.py": 10,
}
ALL = {
    "tests/core": 500,
    "tests/simulator": 3000,
    "tests/experimental/softmax": 1000,
    "tests/experimental/loss": 3000,
    "tests/experimental/plans": 500,
    "tests/torch/functions": 1000,
    "tests/verify": 50,
}
# Of which launches are not repeated by another call, by the test: why.
MAY_DIFFER = {
    "test_gather.py::test_gathering_what_was_never_written": "a plan refuses what an option may allow",
    "test_constants.py::test_it_is_the_constant_of_the_moment": "the kernel changes what it reads",
    "tests/simulator/replay/": "tests of replay change what replays, and draw kernels while they run",
}


def check(path: str, least: int, lines: Path) -> None:
    """Assert that no launch of these tests is replayed to other bits, and that so many at least are planned."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.replayed_both_ways", path]
    command += ["-m", "not sweep"]
    environment = with_checkout(**{VARIABLE: str(lines)})
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=False, stdout=subprocess.DEVNULL)
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    differing = [line for line in results if "differences" in line]
    assert [line for line in differing if not any(part in line["test"] for part in MAY_DIFFER)] == []
    counts: Counter[str] = Counter()
    for line in results:
        counts.update(line.get("counts", {}))
    assert counts["planned"] >= least, counts


@pytest.mark.parametrize(("path", "least"), SAMPLE.items())
def test_a_sample_of_launches(path: str, least: int, tmp_path: Path) -> None:
    check(path, least, tmp_path / "lines")


@pytest.mark.sweep
@pytest.mark.parametrize(("path", "least"), ALL.items())
def test_all_launches(path: str, least: int, tmp_path: Path) -> None:
    check(path, least, tmp_path / "lines")
