# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Packages whose names load their modules when they are first used: what an import loads, and that nobody sees it."""

from __future__ import annotations

import json
import traceback
from importlib import import_module

import pytest

from tests.fresh_python import run_fresh

# The packages, and a name of each that is loaded late.
LATE = {
    "nkilib.experimental.loss": "cross_entropy_forward",
    "nkilib.experimental.softmax": "choose_softmax_tiling",
    "nkilib.simulator": "profile",
}
# The most modules of nkilib that an import may load; fewer is better.
MOST_MODULES = {
    "nkilib": 1,
    "nkilib.experimental.loss": 10,
    "nkilib.experimental.softmax": 10,
    "nkilib.experimental.loss.tiling": 210,
    "nkilib.simulator": 110,
    "nkilib.nki": 165,
    "nkilib.torch": 260,
    "nkilib.jax": 260,
}


def printed(code: str) -> list[str]:
    """The lines that a fresh process prints."""
    outcome = run_fresh(code, "simulator")
    assert outcome.error == ""
    return outcome.output.splitlines()


@pytest.mark.parametrize("name", MOST_MODULES)
def test_an_import_loads_few_modules(name: str) -> None:
    """Where this fails, a module that is needed late is imported early; ``python -X importtime`` shows by which."""
    framework = name.removeprefix("nkilib.") if name in ("nkilib.torch", "nkilib.jax") else "numpy"
    pytest.importorskip(framework)
    code = f"import sys, {name}; print(*(name for name in sys.modules if name.partition('.')[0] == 'nkilib'))"
    (line,) = printed(code)
    loaded = line.split()
    assert 0.8 * MOST_MODULES[name] < len(loaded) <= MOST_MODULES[name], len(loaded)
    if name != "nkilib.jax":  # its functions launch the kernels that they import
        late = (".kernels", ".registry_entry", ".reference", ".ctc.host", ".nll.host")
        assert not [module for module in loaded if module.endswith(late)]


@pytest.mark.parametrize("name", LATE)
def test_dir_has_all_names_before_and_after_they_are_used(name: str) -> None:
    code = f"""
import json, sys, {name} as module
print(json.dumps([dir(module), {LATE[name]!r} in vars(module)]))
module.{LATE[name]}
print(json.dumps([dir(module), {LATE[name]!r} in vars(module)]))
"""
    (before, was_loaded), (after, is_loaded) = map(json.loads, printed(code))
    assert (was_loaded, is_loaded) == (False, True)
    assert set(import_module(name).__all__) <= set(before) <= set(after)
    assert before == sorted(before)


@pytest.mark.parametrize("name", LATE)
def test_a_star_imports_all_names(name: str) -> None:
    (line,) = printed(f"from {name} import *; print(*dir())")
    assert set(import_module(name).__all__) <= set(line.split())


@pytest.mark.parametrize("name", LATE)
def test_a_missing_name_is_refused_like_that_of_any_module(name: str) -> None:
    module = import_module(name)
    with pytest.raises(AttributeError, match=rf"^module '{name}' has no attribute 'zzz'$") as refused:
        module.zzz  # noqa: B018
    assert (refused.value.name, refused.value.obj) == ("zzz", module)
    with pytest.raises(ImportError, match=rf"cannot import name 'zzz' from '{name}'"):
        exec(f"from {name} import zzz")


@pytest.mark.parametrize("name", [*LATE, "nkilib.torch", "nkilib.jax"])
def test_for_a_misspelt_name_the_nearest_one_is_suggested_once(name: str) -> None:
    pytest.importorskip(name.removeprefix("nkilib.") if name in ("nkilib.torch", "nkilib.jax") else "numpy")
    module = import_module(name)
    meant = next(known for known in module.__all__ if len(known) > 9)
    with pytest.raises(AttributeError) as refused:
        getattr(module, f"{meant}y")
    (printed_line,) = traceback.format_exception_only(refused.value)
    assert printed_line.endswith(f": module '{name}' has no attribute '{meant}y'; did you mean '{meant}'?\n")
    assert not hasattr(module, "__wrapped__") and not hasattr(module, f"_{meant}")


@pytest.mark.parametrize("name", LATE)
def test_a_pickled_object_loads_its_module(name: str) -> None:
    import pickle

    value = getattr(import_module(name), LATE[name])
    code = f"import pickle; print(pickle.loads({pickle.dumps(value)!r}).__name__)"
    assert printed(code) == [LATE[name]]


def test_a_kernel_without_a_row_of_its_loss_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from nkilib.core.host.lazy_names import lazy_names
    from nkilib.experimental import loss

    get, _ = lazy_names(loss.__name__, ["l1_loss_forward"], {"l1_loss": "elementwise.l1"})
    assert get("l1_loss_forward") is loss.l1_loss_forward
    monkeypatch.setattr("nkilib.core.host.launchable._MADE", {})
    with pytest.raises(LookupError, match="l1_loss_forward must be in the row of a loss, which makes it launchable"):
        get("l1_loss_forward")
