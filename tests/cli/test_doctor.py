# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib doctor` in fresh processes: what it finds, and when it says that kernels cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from nkilib.cli.arguments import MOST_COLUMNS
from nkilib.cli.doctor import Finding, _cores_of_a_launch, _devices
from nkilib.cli.main import main
from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS

VARIABLES = (
    "NKILIB_BACKEND",
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NKI_PRECISE_FP",
    "NKI_SIMULATOR",
    "NKI_COMPILER_FRONTEND",
)


STAND_INS = CHECKOUT / "tests" / "cli" / "site"


def doctor(*before: Path, **environment: str) -> tuple[int, dict[str, str]]:
    """Exit code, and what the report says by what was looked at."""
    path = os.pathsep.join(map(str, (*before, STAND_INS, CHECKOUT)))
    process = subprocess.run(
        [sys.executable, "-m", "nkilib", "doctor"],
        env=with_checkout(*VARIABLES, **{"PYTHONPATH": path, **environment}),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    report: dict[str, str] = {}
    for line in lines:
        what, _, text = line.partition("  ")
        if what:
            report[what] = text.strip()
        else:  # the rest of a folded line
            report[[*report][-1]] += f" {text.strip()}"
    return process.returncode, report


def package(root: Path, name: str, source: str, *parts: str) -> Path:
    """A directory with a package of that name."""
    for path, text in [("", source), *((part, "") for part in parts)]:
        directory = root / name / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "__init__.py").write_text(text)
    return root


def test_where_there_is_no_neuron_software() -> None:
    code, report = doctor()
    assert code == 0
    assert report["nki"] == "simulator, because no package nki is installed"
    assert report["simulated target"] == "trn2"
    assert report["repeated launches"].startswith("replayed ")
    assert report["nkilib"].endswith(str(CHECKOUT / "nkilib"))
    assert report["python"].startswith(f"{sys.version.split()[0]}, {sys.executable}, ")
    for name in ("numpy", "ml_dtypes"):
        assert report[name][0].isdigit()
    for name in ("torch", "jax"):
        assert report[name] == (metadata.version(name) if find_spec(name) else "not installed")
    assert report["jax-neuronx"] == report["libneuronxla"] == "not installed"
    assert not set(VARIABLES) & report.keys()


def test_long_lines_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    main(("doctor",))
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("cores of a launch  "))
    assert lines[place + 1].startswith(" " * len("cores of a launch  ")) and len(lines[place]) <= MOST_COLUMNS


def test_the_cores_of_a_launch_and_a_disagreement_about_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _cores_of_a_launch() == Finding(
        "cores of a launch",
        "nkilib launches its kernels on 2 (the compiler's default); to launch kernels of your own on a device, write "
        "kernel[2](...) or set NEURON_LOGICAL_NC_CONFIG=2, because kernel(...) is made for 1 core, which the compiler "
        "refuses (NCC_EVRF066)",
    )
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    result = "2, with brackets and without (NEURON_LOGICAL_NC_CONFIG=2)"
    assert _cores_of_a_launch() == Finding("cores of a launch", result)
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--lnc 1")
    result = "1, with brackets (--lnc=1 in NEURON_CC_FLAGS) and without (the default of NKI 0.7)"
    assert _cores_of_a_launch() == Finding("cores of a launch", result)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    finding = _cores_of_a_launch()
    assert finding.is_wrong and "take --lnc=1 out of NEURON_CC_FLAGS" in finding.found


def test_devices_and_cores(tmp_path: Path) -> None:
    """A machine of two devices with eight cores each, as the driver shows it; `neuron_device` has other entries too."""
    (tmp_path / "dev").mkdir()
    for device in range(2):
        (tmp_path / "dev" / f"neuron{device}").touch()
        for part in ("info", "stats", "power", *(f"neuron_core{core}" for core in range(8))):
            (tmp_path / "sys/devices/virtual/neuron_device" / f"neuron{device}" / part).mkdir(parents=True)
    devices, cores = _devices(f"{tmp_path}/")
    assert devices.found == f"{tmp_path}/dev/neuron0, {tmp_path}/dev/neuron1"
    assert cores.found == "16 visible, of 2 devices"


def test_a_machine_without_devices(tmp_path: Path) -> None:
    assert [finding.found for finding in _devices(f"{tmp_path}/")] == [
        "none visible (/dev/neuron*)",
        "none visible (/sys/devices/virtual/neuron_device)",
    ]


def test_variables_that_are_set_are_shown() -> None:
    code, report = doctor(NEURON_PLATFORM_TARGET_OVERRIDE="trn3", NKI_SIMULATOR="1")
    assert code == 0
    assert report["simulated target"] == "trn3"
    assert report["NEURON_PLATFORM_TARGET_OVERRIDE"] == "'trn3'"
    assert report["NKI_SIMULATOR"] == "'1'"


def test_a_stub_of_nki_is_named_as_the_reason_for_the_simulator(tmp_path: Path) -> None:
    stub = package(tmp_path, "nki", "raise ImportError('wrong package')")
    code, report = doctor(stub)
    assert code == 0
    assert report["nki"] == (
        "simulator, because the installed package nki is a stub that refuses to import: wrong package"
    )


@pytest.mark.parametrize(
    ("value", "words"), [("0", "not replayed, because NKILIB_REPLAY is 0"), ("always", "also of kernels that read")]
)
def test_the_doctor_reports_whether_launches_are_replayed(value: str, words: str) -> None:
    code, report = doctor(NKILIB_REPLAY=value)
    assert code == 0
    assert words in report["repeated launches"]
    assert report["NKILIB_REPLAY"] == f"'{value}'"


def test_the_real_nki_is_chosen_and_then_nothing_is_simulated(tmp_path: Path) -> None:
    real = package(tmp_path, "nki", "__version__ = '0.7.0'", "isa", "language")
    code, report = doctor(real)
    assert code == 0
    assert report["nki"].startswith("neuron, because nki 0.7.0 is installed: ")
    assert "simulated target" not in report


def test_an_nki_older_than_the_kernels_need_is_reported_with_both_versions(tmp_path: Path) -> None:
    real = package(tmp_path, "nki", "__version__ = '0.6.0'", "isa", "language")
    code, report = doctor(real)
    assert code == 1
    assert report["nki"].startswith(
        "cannot be used: nkilib.nki: the kernels need nki 0.7 or later, found nki 0.6.0 in "
    )


def test_the_frontend_that_kernels_do_not_run_on_is_shown(tmp_path: Path) -> None:
    real = package(tmp_path, "nki", "__version__ = '0.7.0'", "isa", "language")
    code, report = doctor(real, NKI_COMPILER_FRONTEND="custom")
    assert code == 1
    assert "found nki 0.7.0 with NKI_COMPILER_FRONTEND=custom" in report["nki"]
    assert report["NKI_COMPILER_FRONTEND"] == "'custom'"


@pytest.mark.parametrize(
    ("variable", "value", "what", "says"),
    [
        ("NKILIB_BACKEND", "neuron", "nki", "cannot be used: nkilib.nki: NKILIB_BACKEND=neuron requires the real NKI"),
        ("NKILIB_BACKEND", "nonsense", "nki", "cannot be used: nkilib.nki: NKILIB_BACKEND must be one of auto, neuron"),
        (
            "NEURON_PLATFORM_TARGET_OVERRIDE",
            "trn9",
            "simulated target",
            "cannot be used: NEURON_PLATFORM_TARGET_OVERRIDE: target must be one of trn1",
        ),
        ("NKI_PRECISE_FP", "2", "simulated target", "cannot be used: NKI_PRECISE_FP must be 0 or 1"),
        (
            "NKILIB_REPLAY",
            "no",
            "simulated target",
            "cannot be used: NKILIB_REPLAY must be 0, 1, always or strict, got 'no'",
        ),
    ],
)
def test_causes_that_keep_kernels_from_running_are_reported_with_exit_code_1(
    variable: str, value: str, what: str, says: str
) -> None:
    code, report = doctor(**{variable: value})
    assert code == 1
    assert report[what].startswith(says)
    assert report[variable] == repr(value)


def test_a_package_that_refuses_to_import_is_called_so(tmp_path: Path) -> None:
    package(tmp_path, "torch_neuronx", "raise ImportError('WRONG PACKAGE\\nsecond line')")
    information = tmp_path / "torch_neuronx-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-neuronx\nVersion: 1.0\n")
    code, report = doctor(tmp_path)
    assert code == 0
    assert report["torch-neuronx"] == "1.0, but it refuses to import: ImportError: WRONG PACKAGE"
