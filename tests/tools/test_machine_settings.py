# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests pass as on a machine without vector instructions, and the command that runs them so cannot be fooled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools import machine_settings
from tools.machine_checks import (
    COUNTS,
    EXPECTED,
    Machine,
    numpy_groups,
    openblas_core,
    pytest_configure,
    torch_capability,
)
from tools.machine_settings import PLAINEST, Outcome, Setting, environment_of, main, run, settings, table

_CROSS_ENTROPY = "tests/torch/functions/cross_entropy/test_figures.py"
_LOSSES = "tests/torch/functions/test_losses.py"
_ELEMENTWISE = "tests/torch/losses/test_elementwise.py"
# Kinds of tests that failed on some machine, but for models, which take long to import; and what the CPU decides:
# exp and log of numpy, sums of BLAS, samples that PyTorch draws.
SENSITIVE = (
    *(
        f"tests/experimental/loss/cross_entropy/test_reference.py::test_equals_torch_float64[32128-{types}-sum]"
        for types in ("bfloat16-bfloat16", "bfloat16-float32", "float32-bfloat16", "float32-float32")
    ),
    f"{_CROSS_ENTROPY}::test_error_of_the_loss[512-128256-mean-0]",
    f"{_CROSS_ENTROPY}::test_error_of_the_loss[65536-32-sum-0]",
    f"{_CROSS_ENTROPY}::test_error_of_the_gradient_at_a_confident_target",
    f"{_LOSSES}::test_samples_of_pytorch[dtype0-margin_ranking_loss]",
    f"{_ELEMENTWISE}::test_sizes_shapes_and_layouts[sum-binary_cross_entropy_with_logits weight]",
    "tests/experimental/loss/linear_cross_entropy/test_accuracy.py::test_float32_with_steep_logits",
    "tests/simulator/engines/tensor/test_accumulation.py::test_each_product_is_summed_by_itself",
    "tests/core/test_host.py::test_a_sample_of_all_numbers[exp]",
    "tests/core/test_host.py::test_a_sample_of_all_numbers[log]",
)


def named(name: str) -> Setting:
    """A setting of this machine."""
    return next(setting for setting in settings() if setting.name == name)


def test_sensitive_tests_pass_as_on_the_plainest_machine() -> None:
    """One process runs them, and asks PyTorch, numpy and OpenBLAS whether they have left out what they should."""
    outcome = run(named(PLAINEST), ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *SENSITIVE])
    assert not outcome.names and outcome.status == 0
    assert outcome.counts == {"passed": len(SENSITIVE), "failed": 0, "error": 0, "skipped": 0}


def test_the_plainest_setting_changes_all_that_this_machine_has() -> None:
    plainest = named(PLAINEST)
    assert plainest.machine.torch == "DEFAULT" and plainest.machine.threads == 1
    assert list(plainest.machine.numpy_off) == numpy_groups()
    assert plainest.machine.openblas == (None if named("openblas-nehalem").lacks else "Nehalem")
    assert not plainest.lacks


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (Machine(torch="ABACUS"), "PyTorch must compute with ABACUS"),
        (Machine(numpy_off=("SSE2", "NEON")), "numpy must leave out"),
        (Machine(openblas="Babbage"), "OpenBLAS must have its kernels for babbage"),
        (Machine(threads=77), "PyTorch must have 77 threads"),
    ],
    ids=["torch", "numpy", "openblas", "threads"],
)
def test_a_process_that_is_not_as_expected_runs_no_test(
    machine: Machine, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXPECTED, machine.to_text())
    with pytest.raises(pytest.UsageError, match=says):
        pytest_configure()


def test_what_is_as_it_is_differs_in_nothing() -> None:
    asked = Machine.from_text(Machine(torch=torch_capability(), openblas=openblas_core()).to_text())
    assert asked.differences() == []


def test_variables_of_another_setting_do_not_reach_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setenv(COUNTS, "elsewhere")
    environment = environment_of(Setting("openblas", {"OPENBLAS_CORETYPE": "Nehalem"}, Machine(openblas="Nehalem")))
    assert environment["OPENBLAS_CORETYPE"] == "Nehalem"
    assert json.loads(environment[EXPECTED])["openblas"] == "Nehalem"
    assert not {"ATEN_CPU_CAPABILITY", COUNTS} & set(environment)


def test_the_table_names_failures_and_what_is_left_out() -> None:
    outcomes = {
        "good": Outcome({"passed": 3, "failed": 0, "error": 0, "skipped": 1}, [], 1.6, 0),
        "bad": Outcome({"passed": 2, "failed": 1, "error": 0, "skipped": 1}, ["tests/a.py::test_b"], 2.4, 1),
        "refused": Outcome({}, [], 0.5, 4),
    }
    lines = table(outcomes, [Setting("far", lacks="a CPU with WINGS")]).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["setting", "passed", "failed", "error", "skipped", "seconds"],
        ["good", "3", "0", "0", "1", "2"],
        ["bad", "2", "1", "0", "1", "2"],
        ["tests/a.py::test_b"],
    ]
    assert "pytest ended with 4" in lines[4]
    assert lines[5].split(maxsplit=1) == ["far", "left out, needs a CPU with WINGS"]


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1, 1), (4, 1)])
def test_the_command_fails_with_any_run(
    status: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Any] = []

    def fake(setting: Setting, arguments: list[str]) -> Outcome:
        ran.append((setting.name, list(arguments)))
        return Outcome({"passed": 1}, [], 0.0, status)

    monkeypatch.setattr(machine_settings, "run", fake)
    assert main(["--only", "torch-default", "--only", "threads-1", "-n", "4", "tests/core"]) == code
    assert ran == [(name, ["-n", "4", "tests/core"]) for name in ("torch-default", "threads-1")]
    assert "torch-default" in capsys.readouterr().out


def test_a_setting_that_the_machine_lacks_is_named_and_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    far = Setting("far", lacks="a CPU with WINGS")
    monkeypatch.setattr(machine_settings, "settings", lambda: [far])
    assert main([]) == 1  # nothing ran
    assert "a CPU with WINGS" in capsys.readouterr().out
