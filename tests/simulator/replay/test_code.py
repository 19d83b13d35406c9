# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.replay.code`` and ``reads``: which code ran, and whether what it reads is still the same."""

from __future__ import annotations

import functools
import gc
import math
import sys
import timeit
import types
import weakref
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nki, nl
from nkilib.simulator.replay.code import CodeWatch
from nkilib.simulator.replay.errors import Unplannable
from nkilib.simulator.replay.snapshot import Snapshot
from tests.simulator.replay import planners, scenery


def snapshot_of(function: Any) -> Snapshot:
    watch = CodeWatch()
    with watch.here():
        function()
    return watch.snapshot([function])


def set_name(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(scenery, name, value)


def set_attribute(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value, raising=False)


def set_item(owner: Any, key: Any, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(owner, key, value)


def set_cell(function: Any, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(function.__closure__[0], "cell_contents", value)


def seven(self: Any = None) -> int:
    return 7


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a global": set_name("SCALE", 3),
    "a global that is equal": set_name("SCALE", 2.0),
    "a helper": set_name("helper", seven),
    "a builtin": lambda patch: patch.setattr(scenery, "map", lambda *_: [], raising=False),
    "a module": set_name("math", types.SimpleNamespace(floor=seven)),
    "a function of a module": set_attribute(math, "floor", seven),
    "a class": set_name("Shape", type("Shape", (scenery.Shape,), {})),
    "a method": set_attribute(scenery.Shape, "method", seven),
    "a property": set_attribute(scenery.Shape, "area", property(seven)),
    "a static method": set_attribute(scenery.Shape, "static", staticmethod(seven)),
    "an inherited method": set_attribute(scenery.Base, "inherited", seven),
    "a method that hides an inherited one": set_attribute(scenery.Shape, "inherited", seven),
    "an attribute of a class": set_attribute(scenery.Base, "factor", 4),
    "a method of an object's class": set_attribute(scenery.Other, "hidden", seven),
    "an attribute of an object": set_attribute(scenery.SETTINGS, "width", 5),
    "an attribute of an object in an object": set_attribute(scenery.SETTINGS.inner, "width", 5),
    "an attribute that hides a method": set_attribute(scenery.OTHER, "hidden", seven),
    "an item of a dictionary": set_item(scenery.TABLE, "a", 5),
    "a new item of a dictionary": set_item(scenery.TABLE, "c", 5),
    "a function in a dictionary": set_item(scenery.HANDLERS, "first", seven),
    "the length of a list": lambda patch: patch.setattr(scenery, "ITEMS", [*scenery.ITEMS, 4]),
    "the length of a long list": lambda patch: patch.setattr(scenery, "MANY", scenery.MANY[1:]),
    "a default": set_attribute(scenery.helper, "__defaults__", (5,)),
    "a default of a keyword": set_attribute(scenery.helper, "__kwdefaults__", {"y": 5}),
    "a closure in a wrapper": set_cell(scenery.WRAPPED, seven),
    "a closure in a closure": set_cell(scenery.WRAPPED.__closure__[0].cell_contents, 9),  # type: ignore[index]
    "a closure in a dictionary": set_cell(scenery.HANDLERS["first"], 9),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_code_reads_is_noticed_when_it_changes(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of(scenery.reads_all)
    assert snapshot.is_current()
    with monkeypatch.context() as patch:
        CHANGES[change](patch)
        assert not snapshot.is_current()
    assert snapshot_of(scenery.reads_all).is_current()


@pytest.mark.parametrize("value", [scenery.ITEMS, scenery.WEIGHTS], ids=["list", "array"])
def test_an_item_that_is_assigned_is_noticed(value: Any) -> None:
    snapshot, before = snapshot_of(scenery.reads_all), value[0]
    value[0] = 5
    assert not snapshot.is_current()
    value[0] = before
    assert snapshot.is_current()


def test_a_list_or_a_set_that_grows_is_noticed() -> None:
    snapshot = snapshot_of(scenery.reads_all)
    for value, grow, shrink in (
        (scenery.ITEMS, scenery.ITEMS.append, scenery.ITEMS.pop),
        (scenery.MANY, scenery.MANY.append, scenery.MANY.pop),
    ):
        grow(5)
        assert not snapshot.is_current(), value
        shrink()
        assert snapshot.is_current()
    scenery.CHOSEN.add(5)
    assert not snapshot.is_current()
    scenery.CHOSEN.remove(5)


@pytest.mark.parametrize("function", [scenery.imports_when_it_runs, scenery.computes_a_name])
def test_a_helper_that_is_found_when_the_code_runs_is_noticed(
    function: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = snapshot_of(function)
    assert snapshot.is_current()
    monkeypatch.setattr(scenery, "helper", seven)
    assert not snapshot.is_current()


def test_a_module_that_is_imported_when_the_code_runs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of(scenery.imports_when_it_runs)
    monkeypatch.setattr(planners, "__name__", "another")
    assert not snapshot.is_current()


def test_objects_of_classes_of_others_are_looked_into_as_far_as_a_program_changes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = snapshot_of(scenery.reads_a_namespace)
    monkeypatch.setattr(scenery.NAMESPACE, "width", 2)
    assert not snapshot.is_current()
    assert snapshot_of(scenery.reads_a_strange_object).is_current()


def test_what_code_does_not_read_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of(scenery.reads_all)
    monkeypatch.setattr(scenery, "reads_nothing", seven)
    monkeypatch.setattr(scenery, "unheard_of", seven, raising=False)
    monkeypatch.setattr(scenery.Shape, "unheard_of", seven, raising=False)
    monkeypatch.setattr(scenery, "LARGE", None)
    assert snapshot.is_current()
    assert snapshot.is_current()


REFUSED = {
    scenery.imports_os: "its code reads the environment",
    scenery.imports_numpy_random: "its code reads random numbers",
    scenery.reads_getenv: "its code reads the environment",
    scenery.reads_environ: "its code reads the environment",
    scenery.reads_random: "its code reads random numbers",
    scenery.reads_choice: "its code reads random numbers",
    scenery.reads_numpy_random: "its code reads random numbers",
    scenery.reads_uuid: "its code reads random numbers",
    scenery.reads_time: "its code reads a clock",
    scenery.prints: "its code calls print",
    scenery.opens: "its code calls open",
    scenery.warns: "its code may warn",
    scenery.reads_large: "its code reads an array of 80,000 bytes that is no argument",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_code_that_sees_what_no_snapshot_holds_is_refused(function: Callable[[], Any]) -> None:
    with pytest.raises(Unplannable) as caught:
        snapshot_of(function)
    assert str(caught.value) == REFUSED[function]
    assert snapshot_of(scenery.reads_nothing).is_current()


def test_names_of_attributes_are_no_builtins() -> None:
    assert snapshot_of(scenery.has_an_attribute_called_print).is_current()


def test_a_kernel_that_prints_on_the_device_is_refused() -> None:
    x = np.zeros((2, 2), np.float32)

    def printing() -> None:
        nki.jit(lambda x: nl.device_print("x", x))(x)

    with pytest.raises(Unplannable, match="prints"):
        snapshot_of(printing)


def test_depends_on_is_planned_if_it_says_what_for() -> None:
    handle = types.SimpleNamespace(depends_on=lambda *producers, kind=None: None)

    def says() -> None:
        handle.depends_on(1, kind="runtime")

    def does_not_say() -> None:
        handle.depends_on(1)

    assert snapshot_of(says).is_current()
    with pytest.raises(Unplannable, match="depends_on"):
        snapshot_of(does_not_say)


def test_a_tensor_in_a_closure_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(Unplannable, match="its code reads a tensor that is no argument"):
        snapshot_of(scenery.closing_over(torch.zeros(2)))


def test_a_closure_of_the_kernel_and_what_it_calls_is_noticed() -> None:
    scale = 2.0

    def inner() -> float:
        return scale

    def kernel() -> float:
        return inner()

    snapshot = snapshot_of(kernel)
    scale = 3.0
    assert not snapshot.is_current()


def test_a_snapshot_does_not_keep_the_kernel_alive() -> None:
    kernel = types.FunctionType(scenery.reads_all.__code__, scenery.reads_all.__globals__, "kernel", (1,))
    snapshot, alive = snapshot_of(functools.wraps(scenery.reads_nothing)(kernel)), weakref.ref(kernel)
    assert snapshot.is_current()
    del kernel
    gc.collect()
    assert alive() is None
    assert not snapshot.is_current()


def test_each_thread_is_watched_that_enters() -> None:
    watch = CodeWatch()

    def run(function: Callable[[], Any], is_watched: bool) -> None:
        if not is_watched:
            function()
            return
        with watch.here():
            function()

    threads = [
        Thread(target=run, args=(scenery.WRAPPED, True)),
        Thread(target=run, args=(scenery.helper, True)),
        Thread(target=run, args=(scenery.prints, False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ran = {item.code.co_name for item in watch._ran.values()}
    assert {"wrapper", "inner", "helper"} <= ran
    assert "prints" not in ran
    assert sys.gettrace() is None


def test_a_watch_that_is_off_sees_nothing() -> None:
    watch = CodeWatch(is_on=False)
    with watch.here():
        assert sys.gettrace() is None
        scenery.reads_all()
    assert watch._ran == {}


def test_a_debugger_that_starts_in_between_stays() -> None:
    def debugger(*_: Any) -> None:
        return None

    watch = CodeWatch()
    try:
        with watch.here():
            sys.settrace(debugger)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)


def test_a_snapshot_of_five_hundred_names_is_compared_fast() -> None:
    names = [f"name_{number}" for number in range(500)]
    scope: dict[str, Any] = {name: scenery.closing_over(name) for name in names}
    exec(f"def kernel():\n    return [{', '.join(names)}]", scope)
    snapshot = snapshot_of(scope["kernel"])
    # 8 us on a quiet machine.
    assert min(timeit.repeat(snapshot.is_current, number=100, repeat=5)) / 100 < 100e-6
    scope["name_499"] = None
    assert not snapshot.is_current()
