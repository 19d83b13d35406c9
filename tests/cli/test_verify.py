# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib verify`: a self-check where there is no device, and the way back into a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nkilib.cli.main import main
from nkilib.verify import runner
from nkilib.verify.registry import KINDS, all_steps, step_named
from tests.cli.test_command_line import ended

FIRST = "nkilib verify ON THE SIMULATOR"
QUICK = "float to integer"


def verify(report: Path, *arguments: str) -> int:
    return main(("verify", "--report", str(report), *arguments))


def test_a_self_check_says_so_first_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    assert verify(report, "--quick", "--step", "large") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(FIRST) and "times are modelled, not measured" in lines[0]
    assert lines[1] == f"2 steps for trn2, at most 900 s each; report: {report}"
    assert lines[2].startswith("as expected  extended_cross_entropy_forward: equal largest logits, float32 (")
    assert lines[5] == f"{'':12} reading: the mathematical function"
    assert lines[-1] == "2 as expected."
    read = json.loads(report.read_text())
    assert (read["place"], read["target"], read["summary"]) == ("simulator", "trn2", {"as expected": 2})


@pytest.mark.sweep
def test_the_whole_self_check(tmp_path: Path) -> None:
    assert verify(tmp_path / "r.json") == 0
    read = json.loads((tmp_path / "r.json").read_text())
    assert set(read["summary"]) <= {"as expected", "modelled", "not run"}
    assert len(read["steps"]) == sum(map(len, all_steps().values()))


def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    assert verify(report, "--step", QUICK, "--timeout", "0.01") == 1
    shown = capsys.readouterr().out
    assert "timed out    float to integer" in shown and "--timeout gives more" in shown
    assert shown.splitlines()[-1] == "timed out: float to integer"
    assert verify(report, "--step", QUICK) == 2
    assert f"{report} exists already: --resume continues its run" in capsys.readouterr().err
    assert verify(tmp_path / f"{'x' * 300}.json", "--step", QUICK) == 2
    assert "error: cannot write the report: [Errno 36] File name too long" in capsys.readouterr().err
    assert verify(report, "--step", QUICK, "--resume") == 1, "a step that took too long is not run again unasked"
    assert verify(report, "--step", QUICK, "--resume", "--again") == 0
    assert json.loads(report.read_text())["summary"] == {"as expected": 1}


def test_ctrl_c_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_limited", interrupted)
    assert verify(tmp_path / "r.json", "--step", QUICK) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"interrupted; --resume --report {tmp_path / 'r.json'} continues with the next step"


def test_the_list_names_every_step_and_runs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path / "r.json", "--list") == 0
    shown = capsys.readouterr().out
    for kind, steps in all_steps().items():
        assert f"{kind}: {len(steps)}\n" in shown
        assert all(f"  {step.name}: " in shown for step in steps)
    assert not (tmp_path / "r.json").exists()


def test_steps_are_chosen_by_kind_by_name_and_by_pace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert verify(tmp_path / "r.json", "--list", "--only", "times", "--step", "exp") == 0
    assert capsys.readouterr().out.splitlines()[0] == "times: 2"
    quick, every = all_steps(quick_only=True), all_steps()
    assert list(quick) == list(KINDS) and all(0 < len(quick[kind]) < len(every[kind]) for kind in KINDS)
    names = [step.name for steps in every.values() for step in steps]
    assert len(set(names)) == len(names)
    assert step_named(names[0]).name == names[0]
    with pytest.raises(KeyError, match="no step 'x'"):
        step_named("x")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--again",), "--again needs --resume"),
        (("--resume",), "run without --resume first"),
        (("--on", "device"), "kernels would not run on a device"),
        (("--step", "no such"), "no step of kernels, probes, times has 'no such' in its name"),
    ],
)
def test_what_cannot_be_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert verify(tmp_path / "r.json", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m nkilib verify: error: ") and said in line
    assert not (tmp_path / "r.json").exists()


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path / "missing" / "r.json", "--quick") == 2
    assert "cannot write the report" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("--timeout", "0"), ("--timeout", "x"), ("--only", "speed"), ("--target", "trn1"), ("--on", "moon")]
)
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    assert ended(("verify", *arguments)) == 2


def test_help_has_exit_codes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(("verify", "--help")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit code: 0; 1 if a result is not as expected; 2 if the arguments are wrong or nothing can run." in shown
