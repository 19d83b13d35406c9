# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Devices and the code that they run: launches on the cores of the environment, a native device, and refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import nkilib.torch
from nkilib.experimental.loss.registry import LOSSES
from nkilib.torch import cross_entropy
from nkilib.torch.dispatch import devices, launch
from nkilib.torch.dispatch.register import OPERATORS
from nkilib.torch.functions.cross_entropy.results import ForwardResults
from tests.fresh_python import CHECKOUT, run_fresh
from tests.torch.fresh import run_module
from tests.torch.inputs import CLASSES, POSITIONS, make_logits, make_targets
from tests.torch.stand_in import stand_in_for

VARIABLE = "NEURON_LOGICAL_NC_CONFIG"


def run_on_pretended_neuron(lnc: str, *arguments: str) -> dict[str, Any]:
    printed = run_module("tests.torch.dispatch.native_device_run", *arguments, **{VARIABLE: lnc})
    report: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return report


@pytest.mark.parametrize(("lnc", "cores"), [("1", 1), ("2", 2)])
def test_a_native_device_gives_the_results_of_the_cpu(lnc: str, cores: int) -> None:
    inplace = lnc == "2"
    reports = run_on_pretended_neuron(lnc, *(["inplace"] if inplace else []))
    x = make_logits(4, 3, CLASSES).requires_grad_()
    loss = cross_entropy(x, make_targets(4, 3, ignored=-100), label_smoothing=0.1, class_dim=-1)
    loss.backward()
    assert x.grad is not None
    assert reports["whole"]["loss"] == loss.item()
    assert reports["whole"]["gradient"] == x.grad.tolist()
    assert reports["in shards"]["loss"] == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(torch.tensor(reports["in shards"]["gradient"]), x.grad)
    for report in reports.values():
        assert report["cores"] == [cores, cores]
        assert report["devices"] == ["neuron"]
        assert report["overwritten"] == inplace


REFUSED = """
import torch
import nkilib.torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend({name!r})
logits = torch._C._acc.create_empty_tensor((2, 3), torch.float32)
target = torch._C._acc.create_empty_tensor((2,), torch.int64)
torch.ops.nkilib.cross_entropy_forward(logits, target)
"""


def test_a_neuron_tensor_without_the_real_nki_says_so() -> None:
    error = run_fresh(REFUSED.format(name="neuron"), "simulator").error
    assert "tensors on neuron need the real NKI, and nkilib runs on its simulator here" in error


def test_another_native_device_is_refused_with_the_supported_ones() -> None:
    error = run_fresh(REFUSED.format(name="other"), "simulator").error
    assert "cpu (simulated), neuron (the native device of torch-neuronx) or xla" in error and "got other" in error


def test_cpu_tensors_without_the_simulator_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "SIMULATED", False)
    with pytest.raises(NotImplementedError, match=r"CPU tensors need the simulator.*NKILIB_BACKEND=simulator"):
        cross_entropy(make_logits(POSITIONS, CLASSES), make_targets(POSITIONS))


@pytest.mark.parametrize(
    ("environment", "launched"),
    [
        ({}, [2]),
        ({VARIABLE: "1"}, None),
        ({VARIABLE: "2"}, None),
        ({"NEURON_CC_FLAGS": "-O1 --lnc=1"}, [1]),
        ({VARIABLE: "2", "NEURON_CC_FLAGS": "--lnc=2"}, None),
    ],
)
def test_kernels_are_launched_without_brackets_where_the_variable_is_set(
    environment: dict[str, str], launched: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None where the launch has no brackets; else the grid is what the compiler works with."""
    grids: list[int] = []

    class Kernel:
        def __getitem__(self, cores: int) -> Any:
            grids.append(cores)
            return self

        def __call__(self, **keywords: Any) -> Any:
            return _forward_results(self, 0, {"with_entropy": False, "with_argmax": False, **keywords})

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    operator = OPERATORS["cross_entropy_forward"]
    monkeypatch.setitem(OPERATORS, operator.name, replace(operator, kernel=Kernel()))
    launch.run(OPERATORS[operator.name], devices.CPU, False, make_logits(3, CLASSES), make_targets(3))
    assert (grids or None) == launched


def test_a_disagreement_of_kernel_and_compiler_is_refused_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--lnc=1")
    monkeypatch.setitem(OPERATORS, "cross_entropy_forward", replace(OPERATORS["cross_entropy_forward"], kernel=None))
    message = (
        "nkilib::cross_entropy_forward: NEURON_LOGICAL_NC_CONFIG=2 means 2 cores, and --lnc=1 in NEURON_CC_FLAGS means "
        "1 core: kernel and compiler must work with the same number (error NCC_EVRF066 otherwise); take --lnc=1 out of "
        "NEURON_CC_FLAGS"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cross_entropy(make_logits(3, CLASSES), make_targets(3))


def _forward_results(kernel: Any, cores: int, keywords: dict[str, Any]) -> Any:
    """Results of the right shapes, and nothing computed."""
    assert keywords["with_log_sum"]
    count = len(keywords["logits_hbm"])
    vectors = [torch.empty(count) for _ in range(6 + keywords["with_entropy"])]
    argmax = [torch.empty(count, dtype=torch.int32)] if keywords["with_argmax"] else []
    return (*vectors[:4], *argmax, *vectors[4:])


@pytest.mark.parametrize("kernel_writes_in_place", [False, True])
@pytest.mark.parametrize("target_dtype", [torch.int32, torch.int64, torch.float32])
def test_the_device_implementations_look_at_no_value(
    target_dtype: torch.dtype, kernel_writes_in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of XLA and of the native device runs without values; a kernel on XLA returns a new tensor always."""

    def backward_results(kernel: Any, cores: int, keywords: dict[str, Any]) -> torch.Tensor:
        logits: torch.Tensor = keywords["logits_hbm"]
        return logits if keywords["inplace"] and kernel_writes_in_place else logits.clone()

    forward = stand_in_for(monkeypatch, "cross_entropy_forward", _forward_results)
    backward = stand_in_for(monkeypatch, "cross_entropy_backward", backward_results)
    monkeypatch.setattr(devices, "SIMULATED", False)
    monkeypatch.setenv(VARIABLE, "1")
    soft = target_dtype.is_floating_point

    def run(name: str, overwrites: bool, *args: Any, **options: Any) -> Any:
        return launch.run(OPERATORS[name], devices.NEURON, overwrites, *args, **options)

    with FakeTensorMode():
        logits = torch.empty(POSITIONS, CLASSES, dtype=torch.bfloat16)
        target = torch.empty((POSITIONS, CLASSES) if soft else (POSITIONS,), dtype=target_dtype)
        wanted = {"with_logprob": True, "with_entropy": True}
        result = ForwardResults(*run("cross_entropy_forward", False, logits, target, lse_square_scale=0.1, **wanted))
        version = logits._version
        inputs = (logits, target, result.maximum, result.log_sum, result.loss, result.lse)
        for overwrites in (False, True):
            run("cross_entropy_backward", overwrites, *inputs, logit_softcap=3.0)
    lengths = [len(result.argmax), len(result.entropy), len(result.logprob)]
    assert lengths == [0, POSITIONS, 0 if soft else POSITIONS]
    assert (logits._version > version) == (not kernel_writes_in_place)  # copied into the logits
    assert [cores for cores, *_ in (*forward.launches, *backward.launches)] == [1, 1, 1]
    assert [keywords["inplace"] for _, keywords, _ in backward.launches] == [False, True]
    assert forward.launches[0][1]["lse_square_scale"] == 0.1
    assert backward.launches[0][1]["logit_softcap"] == 3.0


def test_importing_nkilib_without_its_torch_imports_no_torch() -> None:
    code = "import sys, nkilib, nkilib.nki, nkilib.experimental.loss, nkilib.simulator; print('torch' in sys.modules)"
    assert run_fresh(code, "simulator").output == "False"


def test_torch_is_imported_in_nkilib_torch_only() -> None:
    home = CHECKOUT / "nkilib"
    importing = {
        path.relative_to(home).parts[0]
        for path in home.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("import torch", "from torch "))
    }
    assert importing == {"torch"}
    assert nkilib.torch.__all__ == sorted(set(nkilib.torch.__all__))
    of_losses = {name for kind in LOSSES for name in (kind.name, kind.module)}
    assert set(nkilib.torch.__all__) - of_losses == {
        "CrossEntropyOutputs",
        "DistillationLoss",
        "LinearDistillationLoss",
        "LinearDistillationOutputs",
        "LinearTokenScores",
        "LogSoftmax",
        "Softmax",
        "Softmax2d",
        "TokenScores",
        "distillation_loss",
        "int32_targets",
        "linear_distillation_loss",
        "linear_token_scores",
        "log_softmax",
        "softmax",
        "token_scores",
        "vocab_parallel_cross_entropy",
        "vocab_parallel_linear_cross_entropy",
    }
