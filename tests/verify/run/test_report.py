# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The report: whole after every step, and good to go on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nkilib.verify.run.report import Entry, Report, ReportError
from nkilib.verify.verdict import Status

HEADER = {"place": "device", "nkilib": "0.1.0", "target": "trn2", "python": "3.12"}


def entry(status: Status) -> Entry:
    return Entry("probes", "what", status, "text", {"reading": "one"}, 1.5, "log")


def test_it_is_whole_after_every_step(tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", HEADER)
    for number, status in enumerate((Status.AS_EXPECTED, Status.DIFFERS), start=1):
        report.put(f"step {number}", entry(status))
        read = json.loads(report.path.read_text())
        assert len(read["steps"]) == number
    assert read["summary"] == {"as expected": 1, "differs": 1} and read["place"] == "device"
    assert read["steps"]["step 2"]["details"] == {"reading": "one"}
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", HEADER)
    report.put("done", entry(Status.DIFFERS))
    report.put("hung", entry(Status.TIMED_OUT))
    report.put("running", entry(Status.RUNNING))
    resumed = Report.resumed(report.path, {**HEADER, "python": "3.13"})
    assert resumed.entries["done"] == entry(Status.DIFFERS)
    assert resumed.header["python"] == "3.13"
    crashed = resumed.entries["running"]
    assert (crashed.status, crashed.text) == (Status.CRASHED, "the run ended while this step was running")
    resumed.without_bad_ends()
    assert list(resumed.entries) == ["done"]


@pytest.mark.parametrize("name", ["place", "nkilib", "target"])
def test_another_run_is_refused(tmp_path: Path, name: str) -> None:
    Report(tmp_path / "r.json", HEADER).save()
    with pytest.raises(ReportError, match=f"is of another run: {name} was '.*' there and is 'x' here; name another"):
        Report.resumed(tmp_path / "r.json", {**HEADER, name: "x"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": {"a": {}}}', '{"steps": {"a": {"status": "odd"}}}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ReportError, match="is no report of nkilib verify; name another file"):
        Report.resumed(tmp_path / "r.json", HEADER)


def test_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="run without --resume first"):
        Report.resumed(tmp_path / "r.json", HEADER)


@pytest.mark.parametrize("status", Status)
def test_what_counts_as_a_difference(tmp_path: Path, status: Status) -> None:
    report = Report(tmp_path / "r.json", HEADER)
    report.put("step", entry(status))
    fine = (Status.AS_EXPECTED, Status.MEASURED, Status.MODELLED, Status.NOT_RUN)
    assert report.has_differences == (status not in fine)
