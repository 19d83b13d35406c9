# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.hardware.options``: defaults, environment variables, and ``using``."""

from __future__ import annotations

import dataclasses
import os
from contextvars import ContextVar
from typing import Any

import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import Options
from nkilib.simulator.hardware import options as module
from nkilib.simulator.hardware.options import CHECKS, current_options
from nkilib.simulator.terms.errors import RegisterTypeError
from tests.simulator.frame import refused


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NKI_PRECISE_FP", raising=False)
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    monkeypatch.delenv("NKI_COMPILER_FRONTEND", raising=False)
    monkeypatch.delenv("NKILIB_PSUM_GROUPS", raising=False)  # which holds for all other tests
    monkeypatch.delenv("NKILIB_OVERLAPPING_COPIES", raising=False)
    monkeypatch.delenv("NKILIB_REPLAY", raising=False)


def test_defaults() -> None:
    assert Options() == Options(target="trn2", precise_fp=True, uninitialized="ignore") == Options.from_environment()


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().target = "trn3"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        (
            "target",
            "trn9",
            ValueError,
            "target must be one of trn1, inf2, gen2, trn2, gen3, trn3, gen4, trn3_a0, trn3pre, got 'trn9'",
        ),
        ("precise_fp", 1, TypeError, "Options.precise_fp must be a bool, got 1"),
        ("replay", "strict", TypeError, "Options.replay must be True, False or 'always', got 'strict'"),
        ("replay", 1, TypeError, "Options.replay must be True, False or 'always', got 1"),
        ("frontend", "parser", ValueError, "Options.frontend must be one of tracer, custom, got 'parser'"),
        ("uninitialized", "zero", ValueError, "Options.uninitialized must be one of error, warn, ignore, got 'zero'"),
        ("capacity", True, ValueError, "Options.capacity must be one of error, warn, ignore, got True"),
        ("races", "nan", ValueError, "Options.races must be one of error, warn, ignore, got 'nan'"),
        ("identical_writes", "", ValueError, "Options.identical_writes must be one of error, warn, ignore, got ''"),
        (
            "overlapping_copies",
            None,
            ValueError,
            "Options.overlapping_copies must be one of error, warn, ignore, got None",
        ),
        ("psum_groups", "off", ValueError, "Options.psum_groups must be one of error, warn, ignore, got 'off'"),
        ("lost_results", None, ValueError, "Options.lost_results must be one of error, warn, ignore, got None"),
    ],
)
def test_wrong_values_are_refused(field: str, value: Any, error: type[Exception], message: str) -> None:
    assert refused(error, lambda: Options(**{field: value})) == message
    before = current_options()

    def use() -> None:
        with nkilib.simulator.using(**{field: value}):
            raise AssertionError("the block must not be entered")

    assert refused(error, use) == message
    assert current_options() == before


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TypeError) as caught, nkilib.simulator.using(race="warn"):
        raise AssertionError("the block must not be entered")
    assert str(caught.value) == (
        "using: there is no option 'race'; there are target, precise_fp, uninitialized, capacity, races, "
        "identical_writes, psum_groups, overlapping_copies, lost_results, frontend, replay, strict"
    )


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("NKI_PRECISE_FP", "0", "precise_fp", False),
        ("NKI_PRECISE_FP", "1", "precise_fp", True),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "gen4", "target", "gen4"),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1", "target", "trn1"),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "", "target", "trn2"),
        ("NKILIB_RACES", "warn", "races", "warn"),
        ("NKILIB_RACES", "", "races", "error"),
        ("NKILIB_CAPACITY", "ignore", "capacity", "ignore"),
        ("NKILIB_UNINITIALIZED", "error", "uninitialized", "error"),
        ("NKILIB_UNINITIALIZED", "nan", "uninitialized", "ignore"),
        ("NKILIB_IDENTICAL_WRITES", "warn", "identical_writes", "warn"),
        ("NKILIB_PSUM_GROUPS", "error", "psum_groups", "error"),
        ("NKILIB_PSUM_GROUPS", "", "psum_groups", "warn"),
        ("NKILIB_OVERLAPPING_COPIES", "ignore", "overlapping_copies", "ignore"),
        ("NKILIB_OVERLAPPING_COPIES", "", "overlapping_copies", "warn"),
        ("NKILIB_LOST_RESULTS", "warn", "lost_results", "warn"),
        *(("NKILIB_STRICT", "1", check, "error") for check in CHECKS),
        *(("NKILIB_STRICT", value, "identical_writes", "ignore") for value in ("", "0")),
        ("NKILIB_REPLAY", "", "replay", True),
        ("NKILIB_REPLAY", "1", "replay", True),
        ("NKILIB_REPLAY", "strict", "replay", True),
        ("NKILIB_REPLAY", "always", "replay", "always"),
        ("NKILIB_REPLAY", "0", "replay", False),
        ("NKI_COMPILER_FRONTEND", "", "frontend", "tracer"),
        ("NKI_COMPILER_FRONTEND", "tracer", "frontend", "tracer"),
        ("NKI_COMPILER_FRONTEND", "custom", "frontend", "custom"),
        ("NKI_COMPILER_FRONTEND", "parser", "frontend", "custom"),
    ],
)
def test_environment_variables(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str, expected: Any
) -> None:
    monkeypatch.setenv(variable, value)
    assert getattr(Options.from_environment(), field) == expected


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("NKI_PRECISE_FP", "no", "NKI_PRECISE_FP must be 0 or 1, got 'no'"),
        ("NKILIB_RACES", "off", "NKILIB_RACES must be one of error, warn, ignore, got 'off'"),
        ("NKILIB_CAPACITY", "nan", "NKILIB_CAPACITY must be one of error, warn, ignore, got 'nan'"),
        ("NKILIB_UNINITIALIZED", "0", "NKILIB_UNINITIALIZED must be one of error, warn, ignore, got '0'"),
        ("NKILIB_IDENTICAL_WRITES", "yes", "NKILIB_IDENTICAL_WRITES must be one of error, warn, ignore, got 'yes'"),
        ("NKILIB_PSUM_GROUPS", "on", "NKILIB_PSUM_GROUPS must be one of error, warn, ignore, got 'on'"),
        ("NKILIB_REPLAY", "off", "NKILIB_REPLAY must be 0, 1, always or strict, got 'off'"),
        ("NKILIB_STRICT", "yes", "NKILIB_STRICT must be 0 or 1, got 'yes'"),
        ("NKI_COMPILER_FRONTEND", "old", "NKI_COMPILER_FRONTEND must be tracer or custom, got 'old'"),
        (
            "NEURON_PLATFORM_TARGET_OVERRIDE",
            "trn9",
            "NEURON_PLATFORM_TARGET_OVERRIDE: target must be one of trn1, inf2, gen2, trn2, gen3, trn3, gen4, "
            "trn3_a0, trn3pre, "
            "got 'trn9'",
        ),
    ],
)
def test_undocumented_values_of_the_environment_are_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert refused(ValueError, Options.from_environment) == message


def test_options_are_rebuilt_only_when_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = current_options()
    assert current_options() is first
    monkeypatch.setenv("NKILIB_CAPACITY", "ignore")
    assert current_options() == dataclasses.replace(first, capacity="ignore")
    with nkilib.simulator.using(capacity="error"):
        assert current_options() == first
    monkeypatch.setattr(os, "environ", {"NKILIB_CAPACITY": "warn"})
    assert current_options().capacity == "warn"
    monkeypatch.undo()
    # As for all other tests.
    assert current_options() == dataclasses.replace(first, psum_groups="error", overlapping_copies="error")
    with nkilib.simulator.using(precise_fp=True) as options:
        assert refused(TypeError, lambda: nkilib.simulator.using(precise_fp=1).__enter__())
        assert options.precise_fp is True


def test_many_options_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", ("trn1", "trn2")[number % 2])
        with nkilib.simulator.using(capacity="warn") as options:
            assert options.target == ("trn1", "trn2")[number % 2]
    for _ in range(100):
        monkeypatch.setenv("NKILIB_RACES", "ignore")
        assert current_options().races == "ignore"
    assert len(module._KNOWN) <= module._MOST_KNOWN


def test_errors_of_the_replay_are_raised_for_developers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not module.raises_errors_of_replay()
    monkeypatch.setenv("NKILIB_REPLAY", "strict")
    assert module.raises_errors_of_replay()


def test_the_front_end_is_chosen_when_a_kernel_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    @nki.jit
    def kernel() -> int:
        return len([*nl.dynamic_range(3)])

    refused(RegisterTypeError, kernel)
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", "custom")
    assert kernel() == 3
    monkeypatch.delenv("NKI_COMPILER_FRONTEND")
    refused(RegisterTypeError, kernel)


@nki.jit
def generation_seen() -> Any:
    return nisa.get_nc_version(), nl.tile_size.sbuf_fmax_bytes


def test_a_kernel_runs_on_the_target_of_the_environment_or_of_using(monkeypatch: pytest.MonkeyPatch) -> None:
    assert generation_seen()[0] is nisa.nc_version.gen3
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert generation_seen()[0] is nisa.nc_version.gen2
    with nkilib.simulator.using(target="trn3"):
        assert generation_seen() == (nisa.nc_version.gen4, 245_752)
    assert generation_seen() == (nisa.nc_version.gen2, 180_224)


def test_using_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKILIB_RACES", "warn")
    monkeypatch.setenv("NKILIB_CAPACITY", "ignore")
    with nkilib.simulator.using(races="error") as options:
        assert (options.races, options.capacity) == ("error", "ignore")


def test_using_nests_keeps_what_it_does_not_name_and_ends_with_its_block() -> None:
    before = current_options()
    with nkilib.simulator.using(target="trn3", uninitialized="nan") as outer:
        assert (outer.target, outer.uninitialized) == ("trn3", "ignore")  # an older name of it
        with nkilib.simulator.using(precise_fp=False) as inner:
            assert inner == current_options() == dataclasses.replace(outer, precise_fp=False)
        assert current_options() == outer
        with pytest.raises(KeyError), nkilib.simulator.using(target="trn1"):
            raise KeyError
        assert current_options() == outer
    assert current_options() == before


def levels() -> dict[str, str]:
    """The levels of all checks."""
    return {check: getattr(current_options(), check) for check in CHECKS}


ALL = dict.fromkeys(CHECKS, "error")


def test_strict_makes_every_check_an_error_that_nobody_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that is set beats it: by the same block, by a block around or inside, by the check's own variable."""
    monkeypatch.setattr(module, "_CHANGES", ContextVar("changes", default=module._NO_CHANGES))
    using, usual = nkilib.simulator.using, levels()
    assert usual != ALL
    with using(strict=True):
        assert levels() == ALL
        with using(races="warn"):
            assert levels() == {**ALL, "races": "warn"}
        with using(strict=False):
            assert levels() == usual
        with using(target="trn3"):
            assert levels() == ALL
    with using(strict=True, psum_groups="ignore"):
        assert levels() == {**ALL, "psum_groups": "ignore"}
    with using(psum_groups="warn", capacity="error"), using(strict=True):
        assert levels() == {**ALL, "psum_groups": "warn"}
    monkeypatch.setenv("NKILIB_STRICT", "1")
    assert levels() == ALL
    monkeypatch.setenv("NKILIB_UNINITIALIZED", "nan")
    assert levels() == {**ALL, "uninitialized": "ignore"}
    with using(strict=True, uninitialized="error"):
        assert levels() == ALL
    with using(strict=False):
        assert levels() == usual
    assert Options(**levels()) == Options.from_environment()


@pytest.mark.parametrize("value", [1, "yes", None, "error"])
def test_strict_is_true_or_false(value: Any) -> None:
    message = refused(TypeError, lambda: nkilib.simulator.using(strict=value).__enter__())
    assert message == f"using: strict must be a bool, got {value!r}"
