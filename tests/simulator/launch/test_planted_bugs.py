# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every faulty kernel of the tests is refused with ``skip_arithmetic`` as without: these tests run both ways.

`tests.both_ways` runs each launch of a test file twice; here is which files, and what may differ.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.both_ways import VARIABLE
from tests.fresh_python import CHECKOUT, with_checkout

# About a launch of which only values tell, or that looks at what this option changes, by the test: why.
MAY_DIFFER = {
    r"test_matmul_rules\[(stationary|moving) hint\]": "a hint about values that are never computed",
    r"test_by_itself_a_kernel|test_ranks.py::test_a_kernel_by_itself|test_an_operation_of_one_rank": (
        "collectives raise NotImplementedError"
    ),
    r"test_arguments.py::test_a_dense": "the kernel asks where its argument lies, which is a private copy",
    r"test_running_skipping.py::test_a_result_is_an_argument": "what one option takes and the other refuses",
    r"test_levels.py::test_a_warning_that_python_makes_an_error": "the first launch must not warn",
}
_MAY_DIFFER = re.compile("|".join(MAY_DIFFER))

# Its model of the tensors runs once: it fails both ways, and hypothesis would take a minute to shrink what fails.
_LEFT_OUT = (
    "tests/simulator/machine/test_psum_groups_random.py::"
    "test_random_programs_are_warned_of_where_a_model_of_every_element_loses_sums"
)

SAMPLE = [
    "tests/simulator/engines/dma/test_instructions_copy.py",
    "tests/simulator/engines/dma/test_instructions_copy_gather.py",
    "tests/simulator/engines/dma/test_instructions_copy_out_of_range.py",
    "tests/simulator/engines/gpsimd/test_gather.py",
    "tests/simulator/engines/gpsimd/test_across_partitions.py",
    "tests/simulator/engines/gpsimd/test_across_partitions_topk.py",
    "tests/simulator/engines/sync/test_registers.py",
    "tests/simulator/engines/tensor/test_matmul.py",
    "tests/simulator/engines/tensor/test_mx_quantize.py",
    "tests/simulator/engines/vector/test_accumulating.py",
    "tests/simulator/engines/vector/test_selection_predicated.py",
    "tests/simulator/isa/test_indirection.py",
    "tests/simulator/machine/test_issue_operands.py",
    "tests/simulator/machine/test_psum_groups.py",
    "tests/simulator/machine/test_races.py",
]


def check(paths: list[str], lines: Path, least_failing: int) -> None:
    """Assert that the launches of these tests end alike both ways, and that so many at least fail."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.both_ways", *paths]
    command += ["-m", "not sweep"]
    subprocess.run(
        [*command, f"--deselect={_LEFT_OUT}"],
        cwd=CHECKOUT,
        env=with_checkout(**{VARIABLE: str(lines)}),
        check=False,
        stdout=subprocess.DEVNULL,
    )
    *differing, last = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line for line in differing if not _MAY_DIFFER.search(line["test"])] == []
    assert last["counts"]["failing"] >= least_failing


def test_a_sample_of_faulty_kernels_is_refused_alike(tmp_path: Path) -> None:
    check(SAMPLE, tmp_path / "lines", least_failing=500)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("paths", "least_failing"), [(["tests/simulator"], 2000), (["tests/core", "tests/verify"], 30)]
)
def test_all_faulty_kernels_are_refused_alike(paths: list[str], least_failing: int, tmp_path: Path) -> None:
    check(paths, tmp_path / "lines", least_failing)
