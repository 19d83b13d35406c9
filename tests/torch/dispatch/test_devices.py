# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Devices and the code that they run: launches on the cores of the environment, a native device, refusals, and
operators of ``nki_op``: when they are chosen, what they get, and that they give what the CPU gives.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import nkilib.torch
from nkilib.cli.doctor import _torch_operators
from nkilib.experimental.loss.registry import LOSSES
from nkilib.torch import cross_entropy, linear_cross_entropy
from nkilib.torch.dispatch import devices, launch
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.devices import Registrar, chosen_registrar, registrar
from nkilib.torch.dispatch.operator import Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import DEFINITIONS, OPERATORS, operator_signature, register, typed_function
from nkilib.torch.functions.cross_entropy.operators import ForwardResults
from tests.fresh_python import CHECKOUT, run_fresh
from tests.torch.dispatch import native_ops_run
from tests.torch.dispatch.native_ops_run import FEATURES, OPTIONS
from tests.torch.fresh import run_module
from tests.torch.inputs import CLASSES, POSITIONS, make_logits, make_targets
from tests.torch.stand_in import StandIn, stand_in_for

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
    monkeypatch.setitem(OPERATORS, operator.name, replace(operator, kernel=Kernel))
    launch.run(OPERATORS[operator.name], devices.CPU, False, make_logits(3, CLASSES), make_targets(3))
    assert (grids or None) == launched


def test_a_disagreement_of_kernel_and_compiler_is_refused_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--lnc=1")
    monkeypatch.setitem(
        OPERATORS, "cross_entropy_forward", replace(OPERATORS["cross_entropy_forward"], kernel=lambda: None)
    )
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
    of_models = {"FusedCalls", "LazyLogits", "LogitsComputedWarning", "Undo", "fuse_linear_loss", "fused_calls"}
    assert set(nkilib.torch.__all__) - of_losses - of_models == {
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


assert callable(nkilib.torch.cross_entropy), "imported, so that its operators are registered"


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Return the report of the runs on the stand-in."""
    environment = {"NKILIB_TORCH_OPS": "nki_op", "NEURON_LOGICAL_NC_CONFIG": "2"}
    printed = run_module("tests.torch.dispatch.native_ops_run", **environment)
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def on_the_cpu(ignored: int | None, **options: Any) -> tuple[float, Tensor]:
    """Loss and gradient."""
    x = make_logits(native_ops_run.POSITIONS, CLASSES).requires_grad_()
    loss = cross_entropy(x, make_targets(native_ops_run.POSITIONS, ignored=ignored), **options)
    loss.backward()
    assert x.grad is not None
    return loss.item(), x.grad


@pytest.mark.parametrize("run", ["eager", "in place", "in shards", "graph"])
def test_public_functions_give_what_they_give_on_the_cpu(run: str, report: dict[str, Any]) -> None:
    loss, gradient = on_the_cpu(-100, **OPTIONS)
    assert report["registrar"] == ["nki_op", "NKILIB_TORCH_OPS=nki_op"]
    assert report[run]["loss"] == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(torch.tensor(report[run]["gradient"]), gradient)


def test_the_operators_that_run_are_those_of_nki_op(report: dict[str, Any]) -> None:
    for run, backward in (("eager", "cross_entropy_backward"), ("in place", "cross_entropy_backward_")):
        ours = [name for name in report[run]["operators"] if name.startswith("nkilib")]
        assert ours == ["nkilib_neuron::cross_entropy_forward", f"nkilib_neuron::{backward}"]


@pytest.mark.parametrize("run", ["graph", "users graph"])
def test_in_a_graph_a_kernel_is_one_node_beside_operations_of_32_bits(run: str, report: dict[str, Any]) -> None:
    assert report[run]["graphs"] == [1, 1], "one graph of each direction"
    nodes = [name for name in report[run]["nodes"] if not name.startswith("<built-in")]
    assert nodes.count("stand_in_neuronx.kernel.default") == 2
    assert all(name.startswith(("aten.", "stand_in_neuronx.kernel.")) for name in nodes)
    assert not any("copy" in name for name in nodes)
    assert set(report[run]["types"]) <= {"torch.float32", "torch.int32", "torch.bool"}


def test_in_a_graph_the_operator_that_overwrites_copies_nothing_back(report: dict[str, Any]) -> None:
    assert report["overwriting graph"]["equal"]
    assert not any("copy" in name for name in report["overwriting graph"]["nodes"])


def test_a_tensor_may_change_and_a_constant_compiles_again(report: dict[str, Any]) -> None:
    assert report["compilations"] == {"tensor": 1, "constant": 2}


def test_64_bits_that_a_device_would_drop_do_not_become_a_class(report: dict[str, Any]) -> None:
    """The stand-in drops them in every operation; 2^32 + 3 and 2^32 - 100 are neither class 3 nor ignored."""
    assert report["beyond 32 bits"] == [CLASSES, CLASSES]


def test_the_body_gives_the_shapes_of_fake_tensors(report: dict[str, Any]) -> None:
    lengths = [
        native_ops_run.POSITIONS,
        native_ops_run.POSITIONS,
        0,
        native_ops_run.POSITIONS,
        native_ops_run.POSITIONS,
        native_ops_run.POSITIONS,
        native_ops_run.POSITIONS,
        0,
    ]
    kinds = ["torch.float32"] * 6 + ["torch.int32", "torch.float32"]
    assert report["fake"] == [[[length], kind, "neuron"] for length, kind in zip(lengths, kinds, strict=True)]


@pytest.mark.parametrize("run", ["users function", "users operators", "users graph"])
def test_wrappers_as_users_write_them_run(run: str, report: dict[str, Any]) -> None:
    loss, gradient = on_the_cpu(None)
    assert report[run]["loss"] == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(torch.tensor(report[run]["gradient"]), gradient)


@pytest.mark.parametrize("run", ["layer", "layer in a graph"])
def test_a_sum_of_gradients_is_written_to(run: str, report: dict[str, Any]) -> None:
    x, w = (make_logits(rows, FEATURES, seed=rows).requires_grad_() for rows in (native_ops_run.POSITIONS, CLASSES))
    summed = torch.ones(CLASSES, FEATURES)
    loss = linear_cross_entropy(x, w, make_targets(native_ops_run.POSITIONS, ignored=-100), grad_weight_sum=summed)
    (3.0 * loss).backward()
    assert report[run]["loss"] == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(torch.tensor(report[run]["gradient"]), x.grad)
    torch.testing.assert_close(torch.tensor(report[run]["sum"]), summed)
    ours = [name for name in report["operators of the layer"] if name.startswith("nkilib")]
    assert ours == [f"nkilib_neuron::linear_cross_entropy_{name}" for name in ("forward", "backward_adding")]


def nothing(*args: Any, **keywords: Any) -> None:
    """The body of functions whose types alone are looked at."""


def as_schema(operator: Operator, overwrites: bool) -> str:
    """Return the schema that PyTorch infers from the types, with the alias and the size type of the descriptions."""
    mutated = set(operator.written(overwrites))
    schema = torch.library.infer_schema(typed_function(operator, overwrites, nothing), mutates_args=mutated)
    return re.sub(r"\(a\d+!\)", "(a!)", schema.replace("SymInt", "int"))


@pytest.mark.parametrize("name", OPERATORS)
def test_typed_functions_have_the_schemas_of_the_operators(name: str) -> None:
    """All arguments may be positional there: that is the form of public code."""
    operator = OPERATORS[name]
    for overwrites in (False, True) if operator.may_overwrite else (False,):
        assert as_schema(operator, overwrites) == operator.schema(overwrites).replace(" *,", "")


def doubled(kernel: Any) -> Operator:
    """A small operator that can overwrite."""
    return Operator(
        "test_doubled",
        inputs=(Input("input"), Input("bias", is_optional=True)),
        outputs=(Output("result", dtype=None, shape=as_first),),
        kernel=lambda: kernel,
        may_overwrite=True,
    )


def test_a_typed_function_hands_on_inputs_and_options() -> None:
    calls: list[Any] = []
    function = typed_function(OPERATORS["cross_entropy_forward"], False, lambda *args, **options: calls.append(args))
    function("logits", target="target", lse_square_scale=0.5)
    assert calls == [("logits", "target", None, None)]
    assert function.__name__ == "cross_entropy_forward"
    assert operator_signature(doubled(None), overwrites=True).return_annotation is None


@pytest.fixture
def kernel() -> StandIn:
    return StandIn(lambda cores, keywords: 2.0 * keywords["input_hbm"])


def forget_doubled() -> None:
    OPERATORS.pop("test_doubled")
    for name in ("nkilib::test_doubled", "nkilib::test_doubled_"):
        DEFINITIONS.pop(name)._lib._destroy()


def test_where_nki_op_refuses_torch_library_serves_with_one_warning(
    kernel: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Any] = []

    def nki_op(name: str, mutates_args: Any) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Any:
            handed.append((name, mutates_args))
            if len(handed) == 2:
                raise TypeError("no operator may return nothing")
            return function

        return decorate

    monkeypatch.setattr(registrar, "nki_op", nki_op)
    monkeypatch.setattr(registrar, "reason", "a test")
    try:
        with pytest.warns(
            RuntimeWarning, match="refused nkilib_neuron::test_doubled: TypeError: no operator"
        ) as warned:
            operator = register(doubled(kernel))
            differentiate(operator, operator)
        assert len(warned) == 1
        assert handed == [("nkilib_neuron::test_doubled", set()), ("nkilib_neuron::test_doubled_", {"input"})]
        assert (registrar.name, registrar.definitions) == ("library", {})
        assert torch.equal(operator.op(torch.device("cpu"))(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        forget_doubled()


def test_where_nki_op_is_asked_for_a_refusal_is_an_error() -> None:
    must = Registrar(nki_op=nothing, reason="", must=True)
    with pytest.raises(RuntimeError, match=r"refused it: TypeError: no\. Set NKILIB_TORCH_OPS=library"):
        must.give_up("it", TypeError("no"))


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The native torch_neuronx is loaded."""
    module = ModuleType("torch_neuronx")
    monkeypatch.setitem(sys.modules, "torch_neuronx", module)
    monkeypatch.setattr(torch, "neuron", ModuleType("torch.neuron"), raising=False)
    return module


def test_nki_op_is_chosen_on_the_native_product_alone(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    native.nki_op = nothing  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen_registrar("auto", simulated=False).nki_op is nothing
        assert chosen_registrar("nki_op", simulated=True).nki_op is nothing
        assert chosen_registrar("library", simulated=False).nki_op is None
        assert chosen_registrar("auto", simulated=True).reason == "the kernels run on the simulator here"
        monkeypatch.delattr(torch, "neuron")
        assert chosen_registrar("auto", simulated=False).reason.startswith("no native torch-neuronx is loaded")


def test_a_native_product_without_nki_op_gets_torch_library_and_a_warning(native: ModuleType) -> None:
    with pytest.warns(RuntimeWarning, match="has no nki_op. Its operators on the device neuron are those of torch.lib"):
        assert chosen_registrar("auto", simulated=False).name == "library"
    with pytest.raises(
        ImportError, match=r"NKILIB_TORCH_OPS=nki_op requires the native torch-neuronx, but .* no nki_op"
    ):
        chosen_registrar("nki_op")


def test_the_doctor_repeats_why_torch_library_serves(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "reason", "nki_op of torch-neuronx refused it")
    (finding,) = _torch_operators()
    assert (finding.what, finding.found) == (
        "operators on neuron",
        "library, because nki_op of torch-neuronx refused it",
    )
    monkeypatch.delitem(sys.modules, native.__name__)
    assert not list(_torch_operators()), "nothing to say where there is no torch-neuronx"


def test_a_bad_value_is_refused() -> None:
    expected = "NKILIB_TORCH_OPS must be one of auto, nki_op, library; got 'Library'; unset it for auto"
    with pytest.raises(ValueError, match=f"^nkilib.torch: {expected}$"):
        chosen_registrar("Library")


@pytest.mark.parametrize("same_memory", [True, False])
def test_logits_are_not_copied_onto_themselves(
    same_memory: bool, kernel: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework may return another tensor of the memory that a kernel wrote over, or of other memory."""
    monkeypatch.setattr(devices, "SIMULATED", False)
    inputs = torch.ones(3)

    def in_place(cores: int, keywords: dict[str, Any]) -> Tensor:
        x: Tensor = keywords["input_hbm"]
        return x.mul_(2.0).view(3) if same_memory else 2.0 * x

    kernel = StandIn(in_place)
    operator = doubled(kernel)
    version = inputs._version
    for place in (devices.NEURON, devices.NATIVE):
        launch.run(operator, place, True, inputs)
    assert torch.equal(inputs, torch.full((3,), 4.0))
    assert inputs._version == version + 2, "the kernel's own writes, or the copies"
    assert [returned is keywords["input_hbm"] for _, keywords, returned in kernel.launches] == [False] * 2


def test_operators_of_nki_op_refuse_other_devices() -> None:
    with pytest.raises(
        NotImplementedError, match=r"a::b: tensors must be on neuron, got cpu; call torch\.ops\.nkilib "
    ):
        devices.check_native("a::b", torch.device("cpu"), "nkilib")
