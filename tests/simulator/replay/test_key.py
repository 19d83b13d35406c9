# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.replay.key``: launches with equal keys may be the same, all others are not."""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nki, nl, replayable
from nkilib.simulator import packed, spec, using
from nkilib.simulator.hardware.options import current_options
from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.replay.key import Candidate, Refusal, candidate_of
from nkilib.simulator.terms.compilation import CompileConfig
from nkilib.simulator.terms.nki_object import NKIObject

Pair = namedtuple("Pair", "left right")


@replayable
class Color(Enum):
    RED = 1
    BLUE = 2


class Number(IntEnum):
    ONE = 1


@dataclass(frozen=True)
class Recipe:
    """An immutable value for arguments."""

    scale: float
    names: tuple[str, ...] = ()
    shared: ClassVar[list[int]] = []

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", 1)  # which is no field


@dataclass
class Changing:
    """No value: it may change."""

    scale: float


def wider(recipe: Recipe) -> Recipe:
    """The same recipe with another value beside its fields."""
    object.__setattr__(recipe, "width", 2)
    return recipe


class WithSlot:
    """Has what no field shows."""

    __slots__ = "hidden"


@dataclass(frozen=True, slots=True)
class Hiding(WithSlot):
    """An immutable value with more than its fields."""

    scale: float


class Config(NKIObject):
    """A configuration as public kernels take it."""

    width: int = 1
    tile: Any = None


class Slotted(NKIObject):
    """Holds what ``vars`` does not show."""

    __slots__ = ("hidden",)


class Sub(np.ndarray[Any, Any]):
    """A kind of array."""


@replayable
def function(x: Any = None, y: Any = None, **others: Any) -> Any:
    """A kernel that returns `x`."""
    return x


@replayable
def another(x: Any = None, y: Any = None) -> Any:
    """Another kernel that returns `x`."""
    return x


KERNEL: Kernel = nki.jit(function)


def given(*args: Any, kernel: Kernel = KERNEL, **kwargs: Any) -> Candidate:
    result = candidate_of(kernel, current_options(), args, kwargs)
    assert isinstance(result, Candidate), result
    return result


def reason(*args: Any, kernel: Kernel = KERNEL, **kwargs: Any) -> str:
    result = candidate_of(kernel, current_options(), args, kwargs)
    assert isinstance(result, Refusal)
    return result.reason


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape or (2, 3), dtype)


def frozen(value: Any) -> Any:
    value.flags.writeable = False
    return value


def of_torch(make: Callable[[Any], Any]) -> Any:
    """Return what PyTorch makes; it is imported when an argument is asked for, not when the cases are listed."""
    import torch

    return make(torch)


SAME = array()
# Makes an argument anew each time; all of them are unlike.
UNLIKE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "False": lambda: False,
    "0": lambda: 0,
    "0.0": lambda: 0.0,
    "-0.0": lambda: -0.0,
    "nan": lambda: math.nan,
    "1": lambda: 1,
    "True": lambda: True,
    "1.0": lambda: 1.0,
    "np.int32": lambda: np.int32(1),
    "np.int64": lambda: np.int64(1),
    "np.float32": lambda: np.float32(1),
    "np.float64": lambda: np.float64(1),
    "np.float64 -0.0": lambda: np.float64(-0.0),
    "np.bool": lambda: np.True_,
    "bfloat16": lambda: ml_dtypes.bfloat16(1),
    "complex": lambda: 1 + 0j,
    "complex -0.0": lambda: complex(1, -0.0),
    "str": lambda: "1",
    "bytes": lambda: b"1",
    "dtype's name": lambda: "float32",
    "dtype": lambda: np.dtype("float32"),
    "NKI dtype": lambda: nl.float32,
    "numpy type": lambda: np.float32,
    "operator": lambda: nl.add,
    "another operator": lambda: nl.exp,
    "function": lambda: function,
    "another function": lambda: another,
    "ufunc": lambda: np.add,
    "builtin": lambda: replayable(len),
    "Python's type": lambda: int,
    "enumeration": lambda: Color,
    "member": lambda: Color.RED,
    "another member": lambda: Color.BLUE,
    "integer member": lambda: Number.ONE,
    "frozen": lambda: Recipe(1.0),
    "frozen int": lambda: Recipe(1),
    "frozen, another width": lambda: wider(Recipe(1.0)),
    "frozen names": lambda: Recipe(1.0, ("a",)),
    "()": lambda: (),
    "[]": lambda: [],
    "{}": lambda: {},
    "(1,)": lambda: (1,),
    "[1]": lambda: [1],
    "((), 1)": lambda: ((), 1),
    "((1,),)": lambda: ((1,),),
    "Pair": lambda: Pair(1, 2),
    "(1, 2)": lambda: (1, 2),
    "{1: 2}": lambda: {1: 2},
    "{1: 2.0}": lambda: {1: 2.0},
    "{'1': 2}": lambda: {"1": 2},
    "OrderedDict": lambda: OrderedDict({1: 2}),
    "Config": lambda: Config(1),
    "Config 2": lambda: Config(2),
    "Config tile": lambda: Config(1, array()),
    "array": array,
    "array 3 x 2": lambda: array(3, 2),
    "array 6": lambda: array(6),
    "array 1": lambda: array(1),
    "array 0-D": lambda: np.zeros((), np.float32),
    "array int32": lambda: array(dtype=np.int32),
    "array bfloat16": lambda: array(dtype=ml_dtypes.bfloat16),
    "array read-only": lambda: frozen(array()),
    "array subclass": lambda: array().view(Sub),
    "array packed": lambda: packed(array(2, 3, dtype=np.uint32), nl.float8_e4m3fn_x4),
    "array words": lambda: array(2, 3, dtype=np.uint32),
    "torch": lambda: of_torch(lambda torch: torch.zeros(2, 3)),
    "torch requires_grad": lambda: of_torch(lambda torch: torch.zeros(2, 3, requires_grad=True)),
    "torch Parameter": lambda: of_torch(lambda torch: torch.nn.Parameter(torch.zeros(2, 3))),
    "torch Parameter, frozen": lambda: of_torch(
        lambda torch: torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    ),
    "torch int16": lambda: of_torch(lambda torch: torch.zeros(2, 3, dtype=torch.int16)),
    "torch bfloat16": lambda: of_torch(lambda torch: torch.zeros(2, 3, dtype=torch.bfloat16)),
    "list of arrays": lambda: [array(), array()],
    "list of one array": lambda: [SAME, SAME],
}


@pytest.mark.parametrize("name", UNLIKE)
def test_equal_arguments_have_equal_keys(name: str) -> None:
    make = UNLIKE[name]
    assert given(make()).key == given(make()).key
    assert hash(given(x=make()).key) == hash(given(x=make()).key)


def test_unlike_arguments_have_unlike_keys() -> None:
    keys = {name: given(make()).key for name, make in UNLIKE.items()}
    alike = [pair for pair in itertools.combinations(keys, 2) if keys[pair[0]] == keys[pair[1]]]
    assert alike == []


def test_how_arguments_are_passed_is_in_the_key() -> None:
    keys = [
        given(1, 2).key,
        given(2, 1).key,
        given(1, y=2).key,
        given(x=1, y=2).key,
        given(1).key,
        given().key,
        given(kernel=KERNEL[1]).key,
        given(kernel=KERNEL[2]).key,
        given(kernel=nki.jit(another)).key,
        given(kernel=nki.jit(function, compile_config=CompileConfig(barrier_check=True))).key,
        given(kernel=nki.jit(function, platform_target="trn3")).key,
        given(kernel=KERNEL.with_schedule([("a", "b")])).key,
    ]
    assert len({*keys}) == len(keys)
    assert given(kernel=KERNEL[2]).key == given(kernel=nki.jit(function)[2]).key


@pytest.mark.parametrize("changes", [{"target": "trn3"}, {"capacity": "ignore"}, {"races": "ignore"}])
def test_options_are_in_the_key(changes: dict[str, Any]) -> None:
    before = given(1).key
    with using(**changes):
        assert given(1).key != before
    assert given(1).key == before


@pytest.mark.parametrize(
    "variable", ["NEURON_LOGICAL_NC_CONFIG", "NEURON_CC_FLAGS", "NKI_LNC1_SHARED_HBM", "NKI_PREFETCH_RING_SIZE"]
)
def test_the_environment_of_a_launch_is_in_the_key(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    before = given(1).key
    monkeypatch.setenv(variable, "1")
    assert given(1).key != before
    monkeypatch.undo()
    assert given(1).key == before


def kernel_with(value: Any) -> Kernel:
    def closing() -> Any:
        return value

    kernel: Kernel = nki.jit(closing)
    return kernel


def test_what_a_closure_holds_is_in_the_key() -> None:
    kernel = kernel_with(1)
    before = given(kernel=kernel)
    assert before.key == given(kernel=kernel).key
    cell = kernel.func.__closure__[0]  # type: ignore[attr-defined]
    keys = [before.key]
    kept = [array(), [1], [1], 2.0, 1.0, True]
    for value in kept:
        cell.cell_contents = value
        result = given(kernel=kernel)
        keys.append(result.key)
        assert result.kept[0] is kernel.func
        assert [*map(id, result.kept[3:])] == ([] if value is True else [id(value)])
    del cell.cell_contents
    keys.append(given(kernel=kernel).key)
    assert len({*keys}) == len(keys)


def test_code_that_is_replaced_in_place_is_in_the_key() -> None:
    """Code of the kernel's function, of one that it closes over, and of an argument."""

    @replayable
    def helper() -> int:
        return 1

    kernel = kernel_with(helper)
    before = [given(kernel=kernel).key, given(helper).key]
    helper.__code__ = helper.__code__.replace()
    assert given(kernel=kernel).key != before[0]
    assert given(helper).key != before[1]
    before[0] = given(kernel=kernel).key
    kernel.func.__code__ = kernel.func.__code__.replace()
    assert given(kernel=kernel).key != before[0]


def test_the_file_of_the_kernel_may_be_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that was imported by name stays the old one; its names refer to what the file has now."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "a_module_that_is_edited.py"
    file.write_text("def helper(): return 1\ndef kernel(): return helper()\n")
    module = importlib.import_module(file.stem)
    kernel = nki.jit(module.kernel)
    before = given(kernel=kernel).key
    assert given(kernel=kernel).key == before and kernel.func() == 1
    file.write_text("def helper(): return 1 + 1\ndef kernel(): return helper()\n")
    importlib.reload(module)
    assert kernel.func() == 2 and given(kernel=kernel).key != before


def test_functions_and_classes_that_state_nothing_have_a_key_if_all_are_replayed() -> None:
    with using(replay="always"):
        assert len({given(frozen).key, given(array).key, given(Changing).key, given(time.time).key}) == 4


def test_arrays_come_once_each_in_their_order_and_share_memory() -> None:
    import torch

    one, two = array(), array(4)
    tensor, parameter = torch.zeros(3), torch.nn.Parameter(torch.zeros(5))
    result = given(two, [one, {"a": two}], tensor=tensor, config=Config(1, parameter))
    assert [*map(id, result.originals)] == [*map(id, (two, one, tensor, parameter))]
    assert [array.shape for array in result.arrays] == [(4,), (2, 3), (3,), (5,)]
    assert [array.flags.writeable for array in result.arrays] == [True, True, True, False]
    assert all(type(array) is np.ndarray for array in result.arrays)
    for item in result.arrays[:3]:
        item[...] = 7
    assert (two == 7).all() and (one == 7).all() and bool((tensor == 7).all())


def test_which_arguments_are_one_object_is_in_the_key() -> None:
    one, two = array(), array()
    assert given(one, two).key == given(two, one).key
    assert given(one, one).key == given(two, two).key != given(one, two).key
    assert given(one, two, z=one).key != given(one, two, z=two).key


BUFFER = np.zeros(64, np.float32)
OVERLAPPING: list[Callable[[], tuple[Any, ...]]] = [
    lambda: (BUFFER[:32], BUFFER[31:]),
    lambda: (BUFFER, BUFFER[3:4]),
    lambda: (BUFFER, BUFFER.view(np.int32)),
    lambda: (array(), array(), BUFFER[:8], array(), array(), array(), BUFFER[4:12]),
    lambda: (*(BUFFER[start : start + 4] for start in range(0, 64, 4)), BUFFER[61:62]),
    lambda: of_torch(lambda torch: (x := torch.zeros(64), x[8:9])),
    lambda: of_torch(lambda torch: (x := torch.zeros(64), x.detach())),
    lambda: of_torch(lambda torch: (x := torch.zeros(64), x.numpy())),
]


@pytest.mark.parametrize("make", OVERLAPPING, ids=range(len(OVERLAPPING)))
def test_arrays_that_overlap_have_no_key(make: Callable[[], tuple[Any, ...]]) -> None:
    assert reason([*make()]) == "arrays among the arguments overlap in memory"


def test_arrays_beside_each_other_in_memory_have_a_key() -> None:
    pieces = [BUFFER[start : start + 8] for start in range(0, 64, 8)]
    assert len(given(pieces).arrays) == 8
    assert len(given(pieces, [array() for _ in range(8)]).arrays) == 16
    assert len(given(pieces[:2]).arrays) == 2


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "strided": (lambda: array(4, 4)[:, ::2], "is an array that is not C-contiguous"),
    "transposed": (lambda: of_torch(lambda torch: torch.zeros(2, 3).T), "is an array that is not C-contiguous"),
    "empty": (lambda: array(0, 3), "is an array without elements"),
    "swapped": (lambda: array(dtype=">f4"), "is an array of >f4, not in the machine's byte order"),
    "objects": (lambda: array(dtype=object), "is an array of object, not in the machine's byte order"),
    "spec": (lambda: spec((2, 3), nl.float32), "is a spec: shapes only"),
    "dataclass": (lambda: Changing(1.0), "holds a tests.simulator.replay.test_key.Changing, which has no value"),
    "object": (lambda: [object()], "holds a builtins.object, which has no value to compare"),
    "set": (lambda: {1, 2}, "holds a builtins.set, which has no value to compare"),
    "array in a value": (lambda: Recipe(array()), "holds a numpy.ndarray, which has no value to compare"),  # type: ignore[arg-type]
    "slots": (Slotted, "is a Slotted, which has slots"),
    "slots in a value": (lambda: Hiding(1.0), "is a Hiding, which has slots"),
    "function": (lambda: frozen, "holds frozen, which does not state that it is nkilib.nki.replayable"),
    "class": (lambda: [Changing], "holds Changing, which does not state that it is nkilib.nki.replayable"),
    "clock": (lambda: {"at": time.time}, "holds time, which does not state that it is nkilib.nki.replayable"),
    "sparse": (lambda: of_torch(lambda torch: torch.zeros(2, 3).to_sparse()), "is no tensor that numpy can share: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_key_says_why(name: str) -> None:
    make, why = REFUSED[name]
    assert reason(make()).startswith(f"argument 'x' {why}")
    assert reason(1, y=make()).startswith(f"argument 'y' {why}")
    assert reason(1, 2, z=make()).startswith(f"argument 'z' {why}")


def test_low_precision_that_is_widened_has_no_key() -> None:
    narrow = array(dtype=ml_dtypes.bfloat16)
    with using(precise_fp=False):
        assert reason(narrow) == "argument 'x' is an array of bfloat16, which NKI_PRECISE_FP=0 copies"
        assert given(array()).arrays[0].dtype == np.float32
    assert given(narrow).arrays[0].dtype == ml_dtypes.bfloat16


def test_a_list_that_holds_itself_has_no_key() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert reason(endless) == "argument 'x' is nested too deeply"


def test_a_callable_that_is_no_function_has_no_key() -> None:
    assert reason(kernel=Kernel(np.sum.__call__)) == "the kernel is a method-wrapper, not a Python function"
