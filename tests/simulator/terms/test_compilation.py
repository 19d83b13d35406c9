# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nki.compiler``: the configurations of a kernel, whose values are checked though nothing is compiled.

``NKIObject`` is the base class of what a kernel may hold besides numbers, strings and containers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar

import pytest

from nkilib.nki import nki, nl
from nkilib.simulator import ArgumentTypeError
from tests.simulator.frame import refused

AddressRotation = nki.compiler.AddressRotation
CompileConfig = nki.compiler.CompileConfig
SpecializationConfig = nki.compiler.SpecializationConfig


def test_the_defaults() -> None:
    config = CompileConfig()
    assert config.address_rotation is AddressRotation.AUTO
    assert config.nki_alloc_fallback and not config.prefetch_auto  # the two that are documented
    assert not (config.non_ssa_legalization or config.dead_code_elim or config.barrier_check)
    assert not SpecializationConfig().allow_nested_config_override


def test_a_configuration_is_a_value() -> None:
    assert CompileConfig(barrier_check=True) == CompileConfig(barrier_check=True) != CompileConfig()
    with pytest.raises(FrozenInstanceError):
        CompileConfig().barrier_check = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CompileConfig(barrier_check=1), "CompileConfig.barrier_check must be a bool, got 1"),
        (
            lambda: CompileConfig(address_rotation="auto"),
            "CompileConfig.address_rotation must be a member of nki.compiler.AddressRotation, got 'auto'",
        ),
        (
            lambda: SpecializationConfig(allow_nested_config_override=None),
            "SpecializationConfig.allow_nested_config_override must be a bool, got None",
        ),
    ],
)
def test_values_of_another_type(make: Callable[[], Any], message: str) -> None:
    assert refused(TypeError, make) == message


def test_fields_that_do_not_exist() -> None:
    assert "'optimize'" in refused(TypeError, lambda: CompileConfig(optimize=True))


def test_a_prefetch_ring_is_automatic_or_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CompileConfig(prefetch_auto=True).prefetch_auto
    monkeypatch.setenv("NKI_PREFETCH_RING_SIZE", "4")
    assert not CompileConfig().prefetch_auto
    message = refused(ValueError, lambda: CompileConfig(prefetch_auto=True))
    assert message.startswith("CompileConfig(prefetch_auto=True) and the environment variable NKI_PREFETCH_RING_SIZE")


class Plain(nl.NKIObject):
    x: int
    y: bool = False

    def toggle(self) -> None:
        self.y = not self.y


@dataclass
class Data(nl.NKIObject):
    x: int
    y: bool = False

    def toggle(self) -> None:
        self.y = not self.y


@pytest.mark.parametrize("cls", [Plain, Data])
def test_the_class_of_the_language_guide_with_and_without_dataclass(cls: Any) -> None:
    c = cls(1)
    c.toggle()
    assert (c.x, c.y) == (1, True)
    assert (cls(x=2, y=3).x, cls(2, y=3).y, cls(1, 2).y) == (2, 3, 2)
    assert not cls(1).y, "the class's default is not changed by an instance"


def test_a_field_without_value_and_default_is_none() -> None:
    made: Any = Plain()
    assert (made.x, made.y) == (None, False)


def test_dataclass_makes_no_difference_to_defaults() -> None:
    data: Any = Data
    assert (data().x, data().y) == (None, False)


class PlainWithout(nl.NKIObject):
    start = None
    count = 3
    step: int


@dataclass
class DataWithout(nl.NKIObject):
    start = None
    count = 3
    step: int


@dataclass
class Below(DataWithout):
    stop: int


@pytest.mark.parametrize("cls", [PlainWithout, DataWithout])
def test_an_attribute_without_annotation_is_a_field_behind_the_annotated_ones(cls: Any) -> None:
    """Public kernels build their section parameters so; to Python's dataclass such an attribute is no field."""
    section = cls(start=5, step=2)
    assert (section.start, section.count, section.step) == (5, 3, 2)
    assert (cls(2, 5).step, cls(2, 5).start) == (2, 5)
    assert (cls.start, cls.count) == (None, 3), "the class keeps its defaults"
    assert DataWithout(step=1) != DataWithout(step=1, count=4)  # type: ignore[call-arg]


def test_a_dataclass_may_add_a_field_without_default_below_one_with() -> None:
    below: Any = Below
    assert vars(below(stop=4, count=1)) == {"step": None, "start": None, "count": 1, "stop": 4}


class Shared(nl.NKIObject):
    table: ClassVar[dict[str, int]] = {}
    known: ClassVar[int]
    cache: Any = None

    def size(self) -> int:
        return len(self.table)

    @property
    def double(self) -> int:
        return 2 * self.size()


def test_methods_properties_and_class_variables_are_no_fields() -> None:
    for name in ("size", "double"):
        assert "is no field" in refused(ArgumentTypeError, lambda name=name: Shared(**{name: 1}))
    assert not hasattr(Shared, "known")
    assert vars(Shared(cache=1))["cache"] == 1


class Computed(nl.NKIObject):
    x: int = 2
    doubled: int

    def __post_init__(self) -> None:
        self.doubled = 2 * self.x


def test_post_init_sees_the_fields() -> None:
    assert Computed().doubled == 4
    assert Computed(5).doubled == 10


class Derived(Plain):
    y: int = 7
    z: int


def test_a_subclass_adds_fields_after_those_of_its_base() -> None:
    assert vars(Derived(1, 2, 3)) == {"x": 1, "y": 2, "z": 3}
    made: Any = Derived(1)
    assert (made.y, made.z) == (7, None)


class WithInit(nl.NKIObject):
    x: int = 1

    def __init__(self, text: str) -> None:
        self.x = len(text)


def test_a_class_may_bring_its_own_initializer() -> None:
    assert WithInit("four").x == 4


class Empty(nl.NKIObject):
    pass


@pytest.mark.parametrize(
    ("broken", "message", "corrected"),
    [
        (lambda: Plain(1, 2, 3), "Plain has 2 fields, got 3 values", lambda: Plain(1, 2)),
        (lambda: Empty(1), "Empty has 0 fields, got 1 values", Empty),
        (
            lambda: Plain(1, z=2),
            "Plain: 'z' is no field or is given twice; fields: ['x', 'y']",
            lambda: Plain(1, y=2),
        ),
        (
            lambda: Plain(1, x=2),
            "Plain: 'x' is no field or is given twice; fields: ['x', 'y']",
            lambda: Plain(x=2),
        ),
    ],
)
def test_wrong_values_are_refused_as_python_would(broken: Any, message: str, corrected: Any) -> None:
    assert refused(ArgumentTypeError, broken) == message
    assert isinstance(corrected(), nl.NKIObject)


def test_an_object_can_be_copied_with_a_type_among_its_fields() -> None:
    c: Any = copy.deepcopy(Plain(nl.bfloat16, [1]))
    assert c.x is nl.bfloat16 and c.y == [1]
