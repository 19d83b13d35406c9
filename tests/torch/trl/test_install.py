"""``nkilib.torch.trl.install``: what stands in the place of TRL's function, what goes where, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl
import trl.kernels.chunked_logprob as own
import trl.trainer.utils as place
from torch import Tensor

from nkilib.torch.trl import install
from tests.torch.trl.runs import NAME, OUTPUTS

POSITIONS, FEATURES, CLASSES = 5, 16, 40
STOCK = own.ChunkedLogProbFunction


@pytest.fixture(autouse=True)
def _stock() -> Iterator[None]:
    """Every test finds TRL's own function, and leaves it."""
    assert getattr(place, NAME) is STOCK
    yield
    assert getattr(place, NAME) is STOCK


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tiles that TRL's own code has computed, in order."""
    seen: list[str] = []

    def counted(name: str) -> Callable[..., None]:
        tile = getattr(own, name)

        def count(*args: Any, **kwargs: Any) -> None:
            seen.append(name)
            tile(*args, **kwargs)

        return count

    for name in ("_forward_tile", "_backward_tile"):
        monkeypatch.setattr(own, name, counted(name))
    return seen


def operands(dtype: torch.dtype = torch.float32, features: int = FEATURES) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weight, bias and targets; the first three require grad."""
    torch.manual_seed(0)
    shapes = ((POSITIONS, features), (CLASSES, features), (CLASSES,))
    floating = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    return (*floating, torch.randint(CLASSES, (POSITIONS,)))  # type: ignore[return-value]


def call(given: tuple[Tensor, ...], outputs: tuple[str, ...] = OUTPUTS, **options: Any) -> tuple[Tensor | None, ...]:
    """As a trainer calls it."""
    return getattr(place, NAME).apply(
        *given, options.get("temperature", 1.0), 64, options.get("cap"), options.get("scale", 1.0), outputs
    )


def test_an_installation_lasts_until_it_is_undone(tiles: list[str]) -> None:
    given = operands()
    undo = install(devices=("cpu",))
    call(given)
    assert tiles == []
    undo()
    assert getattr(place, NAME) is STOCK
    call(given)
    assert tiles == ["_forward_tile"]
    undo()
    assert getattr(place, NAME) is STOCK


def test_it_is_undone_where_its_block_ends_and_where_that_fails() -> None:
    with pytest.raises(KeyError), install(devices=("cpu",)) as undo:
        assert undo.devices == {"cpu"}
        assert getattr(place, NAME) is not STOCK
        raise KeyError


@pytest.mark.parametrize("first_out", ["inner", "outer"])
def test_installations_may_be_nested_and_undone_in_any_order(first_out: str, tiles: list[str]) -> None:
    given, outer = operands(), install(devices=("cpu",))
    inner = install()
    call(given)
    assert tiles == []
    (inner if first_out == "inner" else outer)()
    call(given)
    assert len(tiles) == (0 if first_out == "inner" else 1), "the CPU is the outer one's"
    (outer if first_out == "inner" else inner)()
    assert getattr(place, NAME) is STOCK


def test_the_same_device_twice_stays_until_both_are_undone(tiles: list[str]) -> None:
    given = operands()
    with install(devices=("cpu",)):
        with install(devices=["cpu"]):
            pass
        call(given)
    assert tiles == []


def test_what_was_put_there_later_stays_and_computes_as_trl(tiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    undo = install(devices=("cpu",))
    installed = getattr(place, NAME)
    with monkeypatch.context() as patch:
        wrapper = SimpleNamespace(apply=lambda *args: installed.apply(*args))
        patch.setattr(place, NAME, wrapper)
        undo()
        assert getattr(place, NAME) is wrapper
        call(operands())
        assert tiles == ["_forward_tile"]
    place.__dict__[NAME] = STOCK


def test_a_backward_works_after_the_undo(tiles: list[str]) -> None:
    given = operands()
    with install(devices=("cpu",)):
        logprob, entropy, *_ = call(given)
    (logprob.sum() + entropy.sum()).backward()  # type: ignore[union-attr]
    assert tiles == [] and all(each.grad is not None for each in given[:3])


def test_a_device_that_is_not_named_is_left_to_trl(tiles: list[str]) -> None:
    with install():
        logprob, *_ = call(operands())
        logprob.sum().backward()  # type: ignore[union-attr]
    assert tiles == ["_forward_tile", "_backward_tile"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        pytest.param({"dtype": torch.float64}, {}, id="float64"),
        pytest.param({"features": 15}, {}, id="few features"),
        pytest.param({}, {"scale": 0.0}, id="no scale"),
        pytest.param({}, {"scale": -1.0}, id="negative scale"),
        pytest.param({}, {"outputs": ("entropy", "margin")}, id="unknown output"),
    ],
)
def test_what_no_kernel_computes_is_left_to_trl(
    given: dict[str, Any], options: dict[str, Any], tiles: list[str]
) -> None:
    with install(devices=("cpu",)):
        found = call(operands(**given), **options)
        (found[0] if found[1] is None else found[0] + found[1]).sum().backward()  # type: ignore[operator, union-attr]
    assert tiles == ["_forward_tile", "_backward_tile"]
    expected = call(operands(**given), **options)
    for value, other in zip(found, expected, strict=True):
        assert (value is None and other is None) or torch.equal(value, other)  # type: ignore[arg-type]


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


def test_a_function_of_somebody_else_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(place, NAME, SimpleNamespace(apply=None))
        expected = "must be TRL's own ChunkedLogProbFunction, got types.SimpleNamespace; undo what has replaced it"
        with pytest.raises(RuntimeError, match=f"{NAME} {expected}"):
            install(devices=("cpu",))


class _Renamed:
    """With an argument of another name."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, temperature, chunk_size, cap=None, logit_scale=1.0, outputs=()):
        raise AssertionError


class _OtherDefault:
    """With another default."""

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


@pytest.mark.parametrize(
    ("target", "name", "value", "message"),
    [
        pytest.param(trl, "__version__", "1.15.2", "its version is 1.15.2", id="older"),
        pytest.param(trl, "__version__", "1.17.0.dev0", "its version is 1.17.0.dev0", id="newer"),
        pytest.param(
            own,
            "ChunkedLogProbFunction",
            _Renamed,
            r"ChunkedLogProbFunction takes \(hidden, weight, bias, labels, temperature, chunk_size, cap, logit_scale, "
            r"outputs\) instead of \(hidden, weight, bias, targets, ",
            id="argument",
        ),
        pytest.param(
            own,
            "ChunkedLogProbFunction",
            _OtherDefault,
            r"ChunkedLogProbFunction has logit_scale=2.0 by default instead of 1.0",
            id="default",
        ),
        pytest.param(own, "ChunkedLogProbFunction", None, "it has no trl.kernels.chunked_logprob", id="no function"),
        pytest.param(place, NAME, None, "trl.trainer.utils has no _ChunkedLogProbFunction", id="no place"),
        pytest.param(
            place, "maybe_gather_lm_head_ctx", None, "trl.trainer.utils has no maybe_gather_lm_head_ctx", id="no gather"
        ),
    ],
)
def test_another_release_is_refused_with_what_differs(
    target: Any, name: str, value: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if value is None:
            patch.delattr(target, name)
        else:
            patch.setattr(target, name, value)
        expected = (
            rf"^nkilib.torch.trl.install: needs the token scores of trl 1.16, and the trl here differs: {message}"
        )
        with pytest.raises(ImportError, match=expected):
            install(devices=("cpu",))


def test_all_differences_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trl, "__version__", "1.17.0")
        patch.setattr(own, "ChunkedLogProbFunction", _OtherDefault)
        expected = r"its version is 1\.17\.0; .* has logit_scale=2\.0 .*; install trl==1\.16\.\*"
        with pytest.raises(ImportError, match=expected):
            install()


def test_no_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "trl", None)
        expected = "needs trl 1.16, and there is none; install it with pip install 'trl==1.16"
        with pytest.raises(ImportError, match=expected):
            install()
