# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A deprecated name warns first, at the line that uses it, in words that say what to do, and goes when it says so."""

from __future__ import annotations

import ast
import inspect
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nkilib import __version__
from nkilib.base.deprecation import Deprecation, deprecated, deprecated_argument, moved_names
from tests.fresh_python import CHECKOUT, run_fresh

SENTENCE = "{} is deprecated since nkilib 0.3 and will be removed in nkilib 0.5; {}."


@deprecated("nkilib.torch.old", since="0.3", removed_in="0.5", instead="use nkilib.torch.new")
def old(number: int, *, factor: int = 2) -> int:
    """Double a number."""
    return number * factor


def with_old_argument(number: int, double: bool | None = None) -> int:
    """Public; ``double`` goes away."""
    if double is not None:
        deprecated_argument("nkilib.torch.f", "double", since="0.3", removed_in="0.5", instead="multiply the result")
    return number


def caught(code: str, **names: object) -> warnings.WarningMessage:
    """The one warning of a line of code."""
    with warnings.catch_warnings(record=True) as result:
        warnings.simplefilter("always")
        exec(compile(code, "program.py", "exec"), dict(names))
    [warning] = result
    return warning


def test_a_function_warns_at_the_line_of_the_call_and_works_as_before() -> None:
    warning = caught("\n\nresult = old(3, factor=4)\nassert result == 12", old=old)
    assert (warning.filename, warning.lineno, warning.category) == ("program.py", 3, FutureWarning)
    assert str(warning.message) == SENTENCE.format("nkilib.torch.old", "use nkilib.torch.new")
    assert (old.__name__, old.__doc__, str(inspect.signature(old)).partition(" ->")[0]) == (
        "old",
        "Double a number.",
        "(number: 'int', *, factor: 'int' = 2)",
    )


def test_an_argument_warns_where_it_is_given_and_not_where_it_is_left_out() -> None:
    warning = caught("\nf(3, double=True)", f=with_old_argument)
    assert (warning.filename, warning.lineno) == ("program.py", 2)
    assert str(warning.message) == SENTENCE.format("nkilib.torch.f(double=)", "multiply the result")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_old_argument(3) == 3


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that had a name."""
    made = ModuleType("formerly")
    made.__getattr__ = moved_names(  # type: ignore[method-assign]
        "formerly", {"cores": "nkilib.base.lnc.launch_cores"}, since="0.3", removed_in="0.5"
    )
    monkeypatch.setitem(sys.modules, "formerly", made)
    return made


@pytest.mark.parametrize("code", ["\nimport formerly; formerly.cores", "\nfrom formerly import cores"])
def test_a_moved_name_warns_where_it_is_used_and_is_the_new_one(code: str, module: ModuleType) -> None:
    from nkilib.base.lnc import launch_cores

    warning = caught("\nimport formerly\nassert formerly.cores is new", new=launch_cores)
    assert (warning.filename, warning.lineno) == ("program.py", 3)
    with warnings.catch_warnings(record=True) as results:
        warnings.simplefilter("always")
        exec(compile(code, "program.py", "exec"), {})
    assert {(result.filename, result.lineno) for result in results} == {("program.py", 2)}
    assert {str(result.message) for result in results} == {str(warning.message)}
    assert str(warning.message) == SENTENCE.format("formerly.cores", "use nkilib.base.lnc.launch_cores")


def test_a_name_that_a_module_never_had_is_an_error_as_ever(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'formerly' has no attribute 'other'"):
        module.other  # noqa: B018
    assert not hasattr(module, "other")


def test_users_of_a_program_see_the_warning(tmp_path: Path) -> None:
    """The warning is shown by default, which a DeprecationWarning would not be."""
    (tmp_path / "training.py").write_text(
        "import sys\nfrom nkilib.base.deprecation import deprecated\n"
        "old = deprecated('a', since='0.3', removed_in='0.5', instead='use b')(lambda: None)\n"
        "import warnings\nwarnings.showwarning = lambda *a, **_: print(a[1].__name__, a[0])\ndef step(): old()\n"
    )
    outcome = run_fresh("import training; training.step()", after=[tmp_path])
    assert outcome.output == "FutureWarning " + SENTENCE.format("a", "use b")


@pytest.mark.parametrize(("since", "removed_in"), [("0.3", "0.3"), ("0.3", "0.4"), ("1.9", "0.20"), ("1.3", "1.2")])
def test_a_removal_that_comes_too_soon_is_refused(since: str, removed_in: str) -> None:
    with pytest.raises(ValueError, match="a must stay for 2 minor versions or until the next major one; got since="):
        Deprecation("a", since, removed_in, "use b")


def test_the_next_major_version_may_remove() -> None:
    assert str(Deprecation("a", "0.9", "1.0", "use b")).startswith("a is deprecated since nkilib 0.9")


@pytest.mark.parametrize("version", ["1", "1.2.3", "v1.2", ""])
def test_a_version_has_two_numbers(version: str) -> None:
    with pytest.raises(ValueError, match=r"a version must be major\.minor, such as '0\.3'; got"):
        Deprecation("a", version, "9.0", "use b")


def ends(source: str) -> Iterator[tuple[int, str]]:
    """Line and ``removed_in`` of each deprecation in a source."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "removed_in" and isinstance(keyword.value, ast.Constant):
                yield node.lineno, str(keyword.value.value)


def overdue(source: str, version: str) -> list[int]:
    """The lines of deprecations whose version has come."""
    now = tuple(map(int, version.split(".")[:2]))
    return [line for line, end in ends(source) if tuple(map(int, end.split("."))) <= now]


def test_an_overdue_removal_is_seen() -> None:
    source = "deprecated('a', since='0.1', removed_in='0.3', instead='use b')\nmoved_names('m', {}, removed_in='0.4')"
    assert overdue(source, "0.3.1") == [1] and overdue(source, "0.2.9") == []


def test_nothing_is_overdue() -> None:
    sources = {path: path.read_text("utf-8") for path in sorted((CHECKOUT / "nkilib").rglob("*.py"))}
    assert {str(path): overdue(text, __version__) for path, text in sources.items() if overdue(text, __version__)} == {}


@pytest.mark.parametrize(
    "alias", ["nkilib.lnc", "nkilib.experimental.loss.extended", "nkilib.experimental.loss.tiling"]
)
def test_an_alias_that_stays_is_silent(alias: str) -> None:
    outcome = run_fresh(f"from {alias} import *", "simulator", options=["-W", "error::FutureWarning"])
    assert outcome.error == ""
