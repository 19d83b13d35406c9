# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.torch.trl.install``: what stands in the place of TRL's function, what goes where, and what is refused."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import replacement
from nkilib.torch.trl import install
from tests.torch.trl.exact import DIVERGENCES, OUTPUTS, SCORES, Replaced

# Many tests install for devices that are not here.
pytestmark = pytest.mark.filterwarnings("ignore:.*devices must include 'cpu' where nkilib runs on its simulator")
POSITIONS, FEATURES, CLASSES = 5, 16, 40
FUNCTIONS = pytest.mark.parametrize("replaced", [SCORES, DIVERGENCES], ids=["scores", "divergences"])


def stock(replaced: Replaced) -> Any:
    """TRL's own, from where it is defined."""
    return getattr(replaced.own, replaced.name.removeprefix("_"))


@pytest.fixture(autouse=True)
def _stock() -> Iterator[None]:
    """Every test finds TRL's own functions, and leaves them."""
    assert all(case.current is stock(case) for case in (SCORES, DIVERGENCES))
    yield
    assert all(case.current is stock(case) for case in (SCORES, DIVERGENCES))


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tiles that TRL's own code has computed, in order."""
    seen: list[str] = []

    def counted(replaced: Replaced, name: str) -> Callable[..., None]:
        tile = getattr(replaced.own, name)

        def count(*args: Any, **kwargs: Any) -> None:
            seen.append(name)
            tile(*args, **kwargs)

        return count

    for replaced in (SCORES, DIVERGENCES):
        for name in replaced.tiles:
            monkeypatch.setattr(replaced.own, name, counted(replaced, name))
    return seen


def operands(
    replaced: Replaced,
    dtype: torch.dtype = torch.float32,
    features: int = FEATURES,
    teacher_dtype: torch.dtype | None = None,
    teacher_features: int = FEATURES,
) -> list[Tensor]:
    """Hidden states, weight and bias of a model, which require grad, and targets, or the same of a teacher."""
    torch.manual_seed(0)

    def head(dtype: torch.dtype, features: int) -> list[Tensor]:
        shapes = ((POSITIONS, features), (CLASSES, features), (CLASSES,))
        return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]

    if replaced is SCORES:
        return [*head(dtype, features), torch.randint(CLASSES, (POSITIONS,))]
    return [*head(dtype, features), *head(teacher_dtype or dtype, teacher_features)]


def call(replaced: Replaced, inputs: list[Tensor], **options: Any) -> tuple[Tensor | None, ...]:
    """Call the function as a trainer does."""
    temperature, scale = options.get("temperature", 1.0), options.get("scale", 1.0)
    if replaced is SCORES:
        outputs = options.get("outputs", OUTPUTS)
        return SCORES.current.apply(*inputs, temperature, 64, None, scale, outputs)
    scales = (scale, None, options.get("teacher_scale", 1.0), None)
    return DIVERGENCES.current.apply(*inputs, options.get("beta", 1.0), temperature, *scales)


def forward_tile(replaced: Replaced) -> str:
    """The name of the tile that a call without a mixture computes."""
    return replaced.tiles[0]


@FUNCTIONS
def test_an_installation_lasts_until_it_is_undone(replaced: Replaced, tiles: list[str]) -> None:
    inputs = operands(replaced)
    undo = install(devices=("cpu",))
    call(replaced, inputs)
    assert tiles == []
    undo()
    assert replaced.current is stock(replaced)
    call(replaced, inputs)
    assert tiles == [forward_tile(replaced)]
    undo()
    assert replaced.current is stock(replaced)


def test_it_is_undone_where_its_block_ends_and_where_that_fails() -> None:
    with pytest.raises(KeyError), install(devices=("cpu",)) as undo:
        assert undo.devices == {"cpu"}
        assert all(case.current is not stock(case) for case in (SCORES, DIVERGENCES))
        raise KeyError


@FUNCTIONS
@pytest.mark.parametrize("first_out", ["inner", "outer"])
def test_installations_may_be_nested_and_undone_in_any_order(
    first_out: str, replaced: Replaced, tiles: list[str]
) -> None:
    inputs, outer = operands(replaced), install(devices=("cpu",))
    inner = install()
    call(replaced, inputs)
    assert tiles == []
    (inner if first_out == "inner" else outer)()
    call(replaced, inputs)
    assert len(tiles) == (0 if first_out == "inner" else 1), "the CPU is the outer one's"
    (outer if first_out == "inner" else inner)()
    assert replaced.current is stock(replaced)


def test_the_same_device_twice_stays_until_both_are_undone(tiles: list[str]) -> None:
    with install(devices=("cpu",)):
        with install(devices=["cpu"]):
            pass
        call(SCORES, operands(SCORES))
        call(DIVERGENCES, operands(DIVERGENCES))
    assert tiles == []


@FUNCTIONS
def test_what_was_put_there_later_stays_and_computes_as_trl(
    replaced: Replaced, tiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = install(devices=("cpu",))
    installed = replaced.current
    with monkeypatch.context() as patch:
        wrapper = SimpleNamespace(apply=lambda *args: installed.apply(*args))
        patch.setattr(replaced.place, replaced.name, wrapper)
        undo()
        assert replaced.current is wrapper
        call(replaced, operands(replaced))
        assert tiles == [forward_tile(replaced)]
    setattr(replaced.place, replaced.name, stock(replaced))


@FUNCTIONS
def test_a_backward_works_after_the_undo(replaced: Replaced, tiles: list[str]) -> None:
    inputs = operands(replaced)
    with install(devices=("cpu",)):
        first, *_ = call(replaced, inputs)
    first.sum().backward()  # type: ignore[union-attr]
    assert tiles == [] and all(argument.grad is not None for argument in inputs[:3])


@FUNCTIONS
def test_a_device_that_is_not_named_is_left_to_trl(replaced: Replaced, tiles: list[str]) -> None:
    with install():
        first, *_ = call(replaced, operands(replaced))
        first.sum().backward()  # type: ignore[union-attr]
    assert tiles == [forward_tile(replaced), "_backward_tile"]


@pytest.mark.parametrize("devices", [("neuron",), ("xla",), ("xla", "neuron")])
def test_an_installation_without_effect_on_the_simulator_warns(
    devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ", ".join(map(repr, sorted(devices)))
    expected = (
        rf"^nkilib\.torch\.trl\.install: devices must include 'cpu' where nkilib runs on its simulator, as here, got "
        rf"{named}: no kernel will run, .*; pass devices=\('cpu',\) for a test on the CPU, or install the Neuron SDK$"
    )
    with pytest.warns(UserWarning, match=expected) as warned:
        install(devices)()
    assert [Path(item.filename) for item in warned] == [Path(__file__)], "the warning names the line that installs"
    monkeypatch.setattr(replacement, "SIMULATED", False)  # as with the Neuron SDK
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        install(devices)()


def test_an_installation_for_the_cpu_too_does_not_warn() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        install(("neuron", "cpu"))()
    assert warned == []


@pytest.mark.parametrize(
    ("replaced", "given", "options"),
    [
        pytest.param(SCORES, {"dtype": torch.float64}, {}, id="float64"),
        pytest.param(SCORES, {"features": 15}, {}, id="few features"),
        pytest.param(SCORES, {}, {"scale": 0.0}, id="no scale"),
        pytest.param(SCORES, {}, {"scale": -1.0}, id="negative scale"),
        pytest.param(SCORES, {}, {"scale": 1e7}, id="large scale"),
        pytest.param(SCORES, {}, {"outputs": ("entropy", "margin")}, id="unknown output"),
        pytest.param(DIVERGENCES, {"dtype": torch.float64}, {}, id="models in float64"),
        pytest.param(DIVERGENCES, {"teacher_dtype": torch.float64}, {}, id="teacher in float64"),
        pytest.param(DIVERGENCES, {"features": 15}, {}, id="few features of a student"),
        pytest.param(DIVERGENCES, {"teacher_features": 15}, {}, id="few features of a teacher"),
        pytest.param(DIVERGENCES, {"features": 8192, "teacher_features": 8224}, {}, id="features that do not fit"),
        pytest.param(DIVERGENCES, {}, {"scale": 0.0}, id="no scale of a student"),
        pytest.param(DIVERGENCES, {}, {"teacher_scale": -1.0}, id="negative scale of a teacher"),
        pytest.param(DIVERGENCES, {}, {"scale": 1e-7}, id="small scale of a student"),
        pytest.param(DIVERGENCES, {}, {"temperature": 5e-4}, id="low temperature"),
    ],
)
def test_what_no_kernel_computes_is_left_to_trl(
    replaced: Replaced, given: dict[str, Any], options: dict[str, Any], tiles: list[str]
) -> None:
    with install(devices=("cpu",)):
        results = call(replaced, operands(replaced, **given), **options)
        sum(result.sum() for result in results if result is not None and result.requires_grad).backward()  # type: ignore[union-attr]
    assert tiles == [forward_tile(replaced), "_backward_tile"]
    expected = call(replaced, operands(replaced, **given), **options)
    for value, other in zip(results, expected, strict=True):
        assert (value is None and other is None) or torch.equal(value, other)  # type: ignore[arg-type]


def test_features_that_fit_on_chip_are_computed_by_the_kernels(tiles: list[str]) -> None:
    with install(devices=("cpu",)):
        call(DIVERGENCES, operands(DIVERGENCES, features=8192, teacher_features=8192))
    assert tiles == []


def test_a_teacher_of_another_vocabulary_is_left_to_trl(tiles: list[str]) -> None:
    """TRL passes over the classes that the teacher has beside."""
    inputs = operands(DIVERGENCES)
    inputs[1], inputs[2] = inputs[1][:-8], inputs[2][:-8]
    with install(devices=("cpu",)):
        call(DIVERGENCES, inputs)
    assert tiles == ["_stats_tile"]


def test_a_beta_above_1_is_left_to_trl(tiles: list[str]) -> None:
    """TRL gives zeros, and an error in the backward."""
    with install(devices=("cpu",)):
        call(DIVERGENCES, operands(DIVERGENCES), beta=1.5)
    assert tiles == ["_stats_tile"]


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ("cpu", TypeError, r"argument 'devices' must be an iterable of device types, not 'cpu'; pass \('cpu',\)"),
        (3, TypeError, "argument 'devices' must be an iterable of device types, not 3"),
        ((3,), TypeError, r"devices must name one or more of neuron, xla, cpu, got \(3,\)"),
        ((), ValueError, r"devices must name one or more of neuron, xla, cpu, got \(\)"),
        (("cpu", "cuda"), ValueError, "devices must be among neuron, xla, cpu, got 'cuda'; leave it out"),
    ],
)
def test_other_devices_are_refused(devices: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^nkilib.torch.trl.install: {message}"):
        install(devices=devices)


@FUNCTIONS
def test_a_function_of_somebody_else_is_not_replaced(replaced: Replaced, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(replaced.place, replaced.name, SimpleNamespace(apply=None))
        own = stock(replaced).__qualname__
        expected = f"must be TRL's own {own}, got types.SimpleNamespace; undo what has replaced it"
        with pytest.raises(RuntimeError, match=f"{replaced.name} {expected}"):
            install(devices=("cpu",))


class _Renamed:
    """A function with an argument of another name."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, temperature, chunk_size, cap=None, logit_scale=1.0, outputs=()):
        raise AssertionError


class _OtherDefault:
    """A function with another default."""

    @staticmethod
    def forward(
        ctx,
        hidden,
        weight,
        bias,
        targets,
        temperature,
        chunk_size,
        final_logit_softcapping=None,
        logit_scale=2.0,
        outputs=OUTPUTS,
    ):
        raise AssertionError


class _OtherDivergence:
    """A function with an argument that the known one has not."""

    @staticmethod
    def forward(ctx, student_hidden, student_weight, student_bias, teacher_hidden, mask):
        raise AssertionError


@pytest.mark.parametrize(
    ("target", "name", "value", "message"),
    [
        pytest.param("trl", "__version__", "1.15.2", "its version is 1.15.2", id="older"),
        pytest.param("trl", "__version__", "1.17.0.dev0", "its version is 1.17.0.dev0", id="newer"),
        pytest.param(
            "trl.kernels.chunked_logprob",
            "ChunkedLogProbFunction",
            _Renamed,
            r"ChunkedLogProbFunction takes \(hidden, weight, bias, labels, temperature, chunk_size, cap, logit_scale, "
            r"outputs\) instead of \(hidden, weight, bias, targets, ",
            id="argument",
        ),
        pytest.param(
            "trl.kernels.chunked_logprob",
            "ChunkedLogProbFunction",
            _OtherDefault,
            r"ChunkedLogProbFunction has logit_scale=2.0 by default instead of 1.0",
            id="default",
        ),
        pytest.param(
            "trl.kernels.chunked_divergence",
            "ChunkedDivergenceFunction",
            _OtherDivergence,
            r"ChunkedDivergenceFunction takes \(student_hidden, student_weight, student_bias, teacher_hidden, mask\) "
            r"instead of \(student_hidden, student_weight, student_bias, teacher_hidden, teacher_weight, teacher_bias, "
            r"beta, ",
            id="argument of a divergence",
        ),
        pytest.param(
            "trl.kernels.chunked_logprob",
            "ChunkedLogProbFunction",
            None,
            "it has no trl.kernels.chunked_logprob",
            id="no function",
        ),
        pytest.param(
            "trl.kernels.chunked_divergence",
            "ChunkedDivergenceFunction",
            None,
            "it has no trl.kernels.chunked_divergence.ChunkedDivergenceFunction",
            id="no divergence",
        ),
        pytest.param(
            SCORES.in_module, SCORES.name, None, "trl.trainer.utils has no _ChunkedLogProbFunction", id="no place"
        ),
        pytest.param(
            DIVERGENCES.in_module,
            DIVERGENCES.name,
            None,
            "trl.trainer.distillation_trainer has no ChunkedDivergenceFunction",
            id="no place of a divergence",
        ),
        pytest.param(
            "trl.trainer.utils",
            "maybe_gather_lm_head_ctx",
            None,
            "trl.trainer.utils has no maybe_gather_lm_head_ctx;",
            id="no gather",
        ),
    ],
)
def test_another_release_is_refused_with_what_differs(
    target: str, name: str, value: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if value is None:
            patch.delattr(f"{target}.{name}")
        else:
            patch.setattr(f"{target}.{name}", value)
        expected = (
            r"^nkilib.torch.trl.install: needs the token scores and divergences of trl 1.16, and the trl here differs: "
            + message
        )
        with pytest.raises(ImportError, match=expected):
            install(devices=("cpu",))


def test_all_differences_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("trl.__version__", "1.17.0")
        patch.setattr(SCORES.own, "ChunkedLogProbFunction", _OtherDefault)
        expected = r"its version is 1\.17\.0; .* has logit_scale=2\.0 .*; install trl==1\.16\.\*"
        with pytest.raises(ImportError, match=expected):
            install()


def test_no_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "trl", None)
        expected = "needs trl 1.16, and there is none; install it with pip install 'trl==1.16"
        with pytest.raises(ImportError, match=expected):
            install()
