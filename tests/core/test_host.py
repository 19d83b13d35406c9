# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.host``: options as fields of dataclasses, what operators can take, and what becomes of a caller's
values; the tensors of a launch, from what an entry says of them; and the simulator's activation functions, which are as
near to the reference as bounds take them to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import pytest

from nkilib.core.host.error_bounds import CORRECTLY_ROUNDED, SIMULATED, SMALLEST_NORMAL, UNIT, FunctionErrors
from nkilib.core.host.loss import SCALAR, TensorSize, launch_tensors, sized_launch, tensor_bytes
from nkilib.core.host.options import options_from, options_of, values_of
from nkilib.nki import nl
from nkilib.simulator import spec
from nkilib.simulator.numerics.activations import ACTIVATIONS


@dataclass(frozen=True)
class Some:
    count: int
    share: float = 0.5
    cap: float | None = None
    limit: int | None = 3
    is_on: bool = True
    mode: str = "mean"


def test_each_field_is_a_keyword_of_the_schema() -> None:
    assert [item.schema for item in options_of(Some)] == [
        "int count",
        "float share=0.5",
        "float? cap=None",
        "int? limit=3",
        "bool is_on=True",
        'str mode="mean"',
    ]


@dataclass(frozen=True)
class WithList:
    sizes: list[int]


@dataclass(frozen=True)
class WithUnion:
    size: int | float = 0


@pytest.mark.parametrize("group", [WithList, WithUnion])
def test_what_an_operator_cannot_take_is_refused(group: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"^{group.__name__}.sizes? must be bool, int, float or str, or one of them or N"
    ):
        options_of(group)


OPTIONS = {entry.name: entry for entry in options_of(Some)}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("share", np.float32(0.5), 0.5),
        ("share", np.int64(2), 2.0),
        ("share", np.array(0.5), 0.5),
        ("count", np.array(3), 3),
        ("cap", None, None),
        ("cap", 3, 3.0),
        ("count", np.uint8(7), 7),
        ("limit", None, None),
        ("is_on", False, False),
        ("mode", "sum", "sum"),
    ],
)
def test_values_become_pythons(name: str, value: Any, expected: Any) -> None:
    result = OPTIONS[name].as_python("f", value)
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("share", "a", TypeError, "f: argument 'share' must be float, not str"),
        ("share", None, TypeError, "f: argument 'share' must be float, not NoneType"),
        ("share", True, TypeError, "f: argument 'share' must be float, not bool"),
        ("cap", 2j, TypeError, "f: argument 'cap' must be float, not complex"),
        ("count", 1.0, TypeError, "f: argument 'count' must be int, not float"),
        ("count", True, TypeError, "f: argument 'count' must be int, not bool"),
        ("count", -(2**63) - 1, ValueError, "f: count must fit 64 bits, got -9223372036854775809"),
        ("is_on", 1, TypeError, "f: argument 'is_on' must be bool, not int"),
        ("mode", 1, TypeError, "f: argument 'mode' must be str, not int"),
    ],
)
def test_other_values_are_refused(name: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        OPTIONS[name].as_python("f", value)


def test_an_instance_to_keywords_and_back() -> None:
    values = values_of(Some(1, cap=2.0))
    assert values == {"count": 1, "share": 0.5, "cap": 2.0, "limit": 3, "is_on": True, "mode": "mean"}
    assert options_from(Some, {**values, "unknown": 5}) == Some(1, cap=2.0)


def kernel(
    input_hbm: nl.NkiTensor,
    targets_hbm: nl.NkiTensor,
    weight_hbm: nl.NkiTensor | None = None,
    total_hbm: nl.NkiTensor | None = None,
    p: int = 1,
) -> None:
    """Tensors, optional ones among them, and an option."""


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Targets are classes, and as many a row as the option says."""
    if tensor == "targets":
        return TensorSize((shape[0], options.get("p", 1)), "int32")
    return TensorSize(shape) if tensor == "input" else SCALAR


def test_optional_tensors_are_none_but_for_those_that_a_launch_always_has() -> None:
    tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, (4, 7), {}), "bfloat16", always=("total",))
    assert list(tensors) == ["input_hbm", "targets_hbm", "weight_hbm", "total_hbm"]
    assert tensors["weight_hbm"] is None
    expected = {"input": ((4, 7), "bfloat16"), "targets": ((4, 1), "int32"), "total": ((1,), "float32")}
    for name, (shape, dtype) in expected.items():
        result = tensors[f"{name}_hbm"]
        assert (tuple(result.shape), str(result.dtype)) == (shape, str(spec(shape, dtype).dtype))


def test_a_modelled_launch_has_the_type_that_is_asked_for_and_the_options() -> None:
    launch = sized_launch("backward, mean, p = 2", kernel, (1.1, 1.2), size_of, (4, 7), p=2)
    assert not launch.forward and launch.bound == {"bfloat16": 1.1, "float32": 1.2}
    arguments = launch.arguments("float32")
    assert arguments["p"] == 2 and arguments["total_hbm"] is None
    assert str(arguments["input_hbm"].dtype) == str(spec((1,), "float32").dtype)
    assert tuple(arguments["targets_hbm"].shape) == (4, 2)
    assert sized_launch("forward", kernel, (1.0, 1.0), size_of, (4, 7)).forward


def test_bytes_are_those_of_all_tensors_that_are_there() -> None:
    assert tensor_bytes(spec((4, 7), "bfloat16"), None, spec((3,), "float32")) == 4 * 7 * 2 + 3 * 4


Numbers = np.ndarray
# A prime, so that all last digits are among the sampled numbers.
_SAMPLED, _CHUNK = 10007, 1 << 22


@dataclass(frozen=True)
class Function:
    """An activation function in float64, and where it is looked at.

    Attributes:
        exact: the function in float64.
        least, most: magnitudes of arguments: of documented ranges those that are computed with, else of normal results.
        is_signed: negative arguments, too.
    """

    exact: Callable[[Numbers], Numbers]
    least: float
    most: float
    is_signed: bool = False

    def worst(self, name: str, step: int) -> float:
        """The largest error in u of the result, of each ``step``-th float32."""
        first, last = (int(np.float32(array).view(np.uint32)) for array in (self.least, self.most))
        result = 0.0
        for start in range(first, last + 1, step * _CHUNK):
            bits = np.arange(start, min(start + step * _CHUNK, last + 1), step, dtype=np.uint32)
            for sign in (1.0, -1.0) if self.is_signed else (1.0,):
                result = max(result, self._worst_of(name, np.float32(sign) * bits.view(np.float32)))
        return result

    def _worst_of(self, name: str, x: Numbers) -> float:
        came = np.empty_like(x)
        ACTIVATIONS[name](x.copy(), came)
        exact = self.exact(x.astype(np.float64))
        is_normal = np.abs(exact) >= SMALLEST_NORMAL
        errors = np.abs(came - exact)[is_normal] / (UNIT * np.abs(exact[is_normal]))
        return float(errors.max(initial=0.0))


FUNCTIONS: Final = {
    "exp": Function(np.exp, 2.0**-26, 87.3, is_signed=True),
    "log": Function(np.log, 2.0**-64, 2.0**64),
    "reciprocal": Function(lambda x: 1.0 / x, 2.0**-42, 2.0**42, is_signed=True),
    "rsqrt": Function(lambda x: 1.0 / np.sqrt(x), 2.0**-87, 2.0**97),
    "sigmoid": Function(lambda x: np.exp(-np.logaddexp(0.0, -x)), 2.0**-26, 87.3, is_signed=True),
    "softplus": Function(lambda x: np.logaddexp(0.0, x), 2.0**-26, 87.3, is_signed=True),
    "sqrt": Function(np.sqrt, 2.0**-116, 2.0**118),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def test_every_function_is_looked_at() -> None:
    assert [field.name for field in fields(FunctionErrors)] == list(FUNCTIONS)


@every_function
def test_a_sample_of_all_numbers(name: str) -> None:
    allowed = getattr(SIMULATED, name) + 1e-6
    result = FUNCTIONS[name].worst(name, _SAMPLED)
    assert 0.9 * CORRECTLY_ROUNDED <= result <= allowed


@pytest.mark.sweep
@every_function
def test_all_numbers(name: str) -> None:
    """Check every float32 argument instead of a sample, which takes some minutes."""
    assert FUNCTIONS[name].worst(name, 1) <= getattr(SIMULATED, name) + 1e-6
