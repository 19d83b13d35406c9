# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every probe tells its readings apart, is met by the simulator, and stands on the page that asks its question."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from nkilib.verify.probes import dma, frameworks
from nkilib.verify.probes.probe import PROMISES, READINGS, Probe, Reading
from nkilib.verify.registry import PROBES
from nkilib.verify.step import Observation, Status
from tests.fresh_python import CHECKOUT

BY_NAME = {probe.name: probe for probe in PROBES}
DOCS = CHECKOUT / "docs"
# A link to the list of probes.
LINK = re.compile(r"\(\[probe\]\([^)\s]+\.md#[\w-]+\)\)")
MOST = 25
# Importing a framework takes seconds.
OF_FRAMEWORKS = {probe.name for probe in frameworks.PROBES}
RUN_HERE = [
    pytest.param(probe, marks=pytest.mark.sweep if probe.name in OF_FRAMEWORKS else (), id=probe.name)
    for probe in PROBES
]


@pytest.mark.parametrize("probe", PROBES, ids=BY_NAME)
def test_a_planted_result_of_each_reading_is_recognised(probe: Probe) -> None:
    assert len(probe.readings) > 1
    for reading in probe.readings:
        verdict = probe.judge(reading.planted(), is_device=True)
        assert verdict.details["reading"] == reading.name
        assert reading.name in verdict.text
        expected = Status.AS_EXPECTED if reading is probe.readings[0] else Status.DIFFERS
        assert verdict.status is expected
        assert (probe.rests_on_it in verdict.text) == (expected is Status.DIFFERS)


@pytest.mark.parametrize("probe", PROBES, ids=BY_NAME)
def test_no_reading_explains_the_result_of_another(probe: Probe) -> None:
    for reading in probe.readings:
        explaining = [item for item in probe.readings if item.explains(reading.planted(), probe.tolerance)]
        assert explaining == [reading]
    assert len({reading.name for reading in probe.readings}) == len(probe.readings)


@pytest.mark.parametrize("probe", RUN_HERE)
def test_the_simulator_has_the_first_reading(probe: Probe) -> None:
    verdict = probe.judge(probe.observe(is_device=False), is_device=False)
    assert (verdict.status, verdict.text) == (Status.AS_EXPECTED, f"reading: {probe.readings[0].name}")


@pytest.mark.parametrize("probe", PROBES, ids=BY_NAME)
def test_what_no_reading_explains_is_shown(probe: Probe) -> None:
    """Every result holds 0.123, or 77 where it is of integers: no reading has that."""
    real = Observation(error="")
    if probe.name not in OF_FRAMEWORKS:
        real = probe.observe(is_device=False)
    planted = next(reading for reading in probe.readings if reading.expected and reading.refused is None)
    arrays = planted.expected if real.error is not None else real.arrays
    odd = {name: np.full_like(array, 77 if array.dtype.kind in "iu" else 0.123) for name, array in arrays.items()}
    verdict = probe.judge(Observation(odd), is_device=True)
    assert verdict.status is Status.DIFFERS
    assert verdict.text.startswith(f"none of {len(probe.readings)} readings; came: {probe.results[0]} = [")
    assert verdict.details["reading"] is None and ("0.123" in verdict.text or "77" in verdict.text)


@pytest.mark.parametrize("probe", PROBES, ids=BY_NAME)
def test_an_error_that_no_reading_names_is_a_failure(probe: Probe) -> None:
    verdict = probe.judge(Observation(error="CompilerError: NCC_X"), is_device=True)
    assert (verdict.status, verdict.text) == (Status.FAILED, "CompilerError: NCC_X")


@pytest.mark.parametrize(
    "error",
    ["NrtError: NRT Error NRT_EXEC_OOB(1006): Failed to execute model", "OutOfRangeError: row 3", "out of bounds"],
)
def test_an_access_out_of_range_may_be_worded_by_the_runtime_or_by_the_simulator(error: str) -> None:
    verdict = dma.OUTSIDE_VIEW.judge(Observation(error=error), is_device=True)
    assert verdict.text == "reading: reported as out of range"


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(PROBES)


@pytest.mark.parametrize("probe", PROBES, ids=BY_NAME)
def test_a_probe_stands_on_the_page_that_asks_its_question(probe: Probe) -> None:
    page, beginning = probe.row
    text = (DOCS / page).read_text(encoding="utf-8")
    (result,) = (line for line in text.splitlines() if line.startswith((beginning, f"| {beginning}")))
    if page in READINGS:
        assert LINK.search(result), f"the row of {probe.name} must link to the probes"


def test_rows_that_link_to_the_probes_have_one_and_there_are_few() -> None:
    lines = [line for page in READINGS for line in (DOCS / page).read_text(encoding="utf-8").splitlines()]
    linked = [line for line in lines if LINK.search(line)]
    rows = {probe.row[1] for probe in PROBES if probe.row[0] in READINGS}
    assert len(linked) == len(rows) <= MOST
    assert sum(probe.row[0] in READINGS for probe in PROBES) <= MOST


@pytest.mark.parametrize(
    ("page", "heading"),
    [(PROMISES, "### Cross-entropy kernels"), (PROMISES, "### PyTorch")],
)
def test_every_item_that_was_never_run_on_hardware_has_a_probe(page: str, heading: str) -> None:
    _, _, items = (DOCS / page).read_text(encoding="utf-8").partition(f"{heading}\n")
    results = re.findall(r"^- .*$", items.partition("\n##")[0], re.MULTILINE)
    rows = {probe.row[1] for probe in PROBES if probe.row[0] == page}
    assert len(results) >= 5
    for text in results:
        if text.startswith("- times."):  # a kind of steps of their own
            continue
        assert any(text.startswith(row) for row in rows), f"no probe for: {text}"


def test_the_page_lists_every_probe() -> None:
    text = (DOCS / "reference" / "probes.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)[1:]
    assert listed == [
        (probe.name, f"{probe.question}: {probe.readings[0].name}", probe.rests_on_it) for probe in PROBES
    ]


def test_bits_decide_between_neighbours_where_no_tolerance_is_given() -> None:
    probe: Probe = dma.ROUNDED
    right = probe.readings[0].planted()
    wrong = right.arrays["loaded"].astype(np.float32)
    wrong[0] = np.nextafter(wrong[0], np.float32(2))
    assert probe.confirmed(right) is probe.readings[0]
    assert probe.confirmed(replace(right, arrays={**right.arrays, "loaded": wrong})) is None


def test_zeros_of_both_signs_are_one_and_nan_is_nan() -> None:
    reading = Reading("x", {"y": np.array([0.0, np.nan], np.float32)})
    assert reading.explains(Observation({"y": np.array([-0.0, np.nan], np.float32)}), 0.0)
    assert not reading.explains(Observation({"y": np.array([0.0, 0.0], np.float32)}), 0.0)
    assert not reading.explains(Observation({"y": np.array([[0.0, np.nan]], np.float32)}), 0.0)
    assert not reading.explains(Observation({}), 0.0)


def test_a_framework_that_is_absent_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise ImportError("nkilib.torch needs PyTorch")

    monkeypatch.setattr(frameworks, "import_module", absent)
    probe: Probe = frameworks.OPERATORS
    verdict = probe.judge(probe.observe(is_device=True), is_device=True)
    assert (verdict.status, verdict.text) == (Status.NOT_RUN, "nkilib.torch needs PyTorch")


def test_probes_whose_launch_ends_in_an_error_run_last() -> None:
    assert [probe for probe in PROBES if probe.runs_last] == list(dma.BOUNDS)
