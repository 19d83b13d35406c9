# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where the steps are launched, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from nkilib.verify.run import place
from nkilib.verify.run.place import CannotRunError, chosen_place

DEVICES = ["/dev/neuron0", "/dev/neuron1"]


@dataclass
class Backend:
    """A backend that `nkilib.nki` has chosen."""

    name: str
    reason: str


REAL = Backend("neuron", "nki 0.7.0 is installed: nki/__init__.py")
NONE = Backend("simulator", "no package nki is installed")
ASKED = Backend("simulator", "NKILIB_BACKEND=simulator")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(chosen: Backend) -> None:
        monkeypatch.setattr(place, "import_module", lambda _: SimpleNamespace(backend=chosen))

    return choose


def test_a_device_with_nki(backend: Any) -> None:
    backend(REAL)
    for requested in ("auto", "device"):
        result = chosen_place(requested, DEVICES)
        assert result.is_device and result.first_line.startswith(
            "nkilib verify on a Neuron device: /dev/neuron0, /dev/"
        )
    assert not chosen_place("simulator", DEVICES).is_device


def test_nki_without_a_device_is_a_self_check_unless_a_device_is_asked_for(backend: Any) -> None:
    backend(REAL)
    result = chosen_place("auto", [])
    assert not result.is_device
    assert result.first_line == (
        "nkilib verify ON THE SIMULATOR (no Neuron device is visible (/dev/neuron*), though nki 0.7.0 is installed: "
        "nki/__init__.py): a self-check. It says nothing of hardware; times are modelled, not measured"
    )
    assert "as asked for, though no Neuron device is visible" in chosen_place("device", []).first_line


def test_neither_is_a_self_check(backend: Any) -> None:
    backend(NONE)
    assert not chosen_place("auto", []).is_device
    backend(ASKED)
    assert not chosen_place("auto", DEVICES).is_device


@pytest.mark.parametrize(("requested", "visible"), [("auto", DEVICES), ("device", DEVICES), ("device", [])])
def test_a_device_that_would_not_be_used_is_refused(backend: Any, requested: str, visible: list[str]) -> None:
    backend(NONE)
    with pytest.raises(CannotRunError, match=r"because no package nki is installed\. Install the Neuron SDK"):
        chosen_place(requested, visible)


def test_a_broken_nki_is_refused_but_for_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> Any:
        raise ImportError("the kernels need nki 0.7 or later.")

    monkeypatch.setattr(place, "import_module", broken)
    with pytest.raises(CannotRunError, match=r"nki 0\.7 or later\. python -m nkilib doctor says what is installed"):
        chosen_place("auto", DEVICES)
    assert not chosen_place("simulator", DEVICES).is_device
