# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""nkilib.nki chooses between the real NKI and the simulator, says why, and leaves no trace of the other."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fresh_python import run_fresh

STUB_SAYS = "WRONG PACKAGE. Please install the package from its own repository"
STUB = {"nki/__init__.py": f"raise ImportError({STUB_SAYS!r})"}
REAL = {
    "nki/__init__.py": "OWNER = 'real nki'; __version__ = '0.7.0'",
    "nki/isa/__init__.py": "OWNER = 'real isa'",
    "nki/language/__init__.py": "OWNER = 'real language'",
}
REMEDY = (
    "Install it from the Neuron package repository (see the AWS Neuron setup guide), or set NKILIB_BACKEND=simulator."
)

# `nki` as None in sys.modules tells Python that there is no such package, even where the real NKI is installed.
ABSENT = "import sys; sys.modules['nki'] = None\n"
SHOW_CHOICE = """
import sys
from nkilib.nki import SIMULATED, backend, nisa, nki, nl
print(backend.name, SIMULATED, [module.__name__ for module in (nki, nisa, nl)], sep="; ")
print(backend.reason)
print(sorted(name for name in sys.modules if name.partition(".")[0] == "nki" and sys.modules[name] is not None))
"""
SIMULATOR_CHOSEN = (
    "simulator; True; ['nkilib.simulator.api.nki', 'nkilib.simulator.api.isa', 'nkilib.simulator.api.language']"
)
REAL_CHOSEN = "neuron; False; ['nki', 'nki.isa', 'nki.language']"


def make_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write `files`, source by relative path, below `root`."""
    for name, source in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source)
    return root


@pytest.mark.parametrize("backend", [None, "", "auto"])
def test_auto_simulates_where_nki_is_absent(backend: str | None) -> None:
    outcome = run_fresh(ABSENT + SHOW_CHOICE, backend)
    assert outcome.error == ""
    assert outcome.output.splitlines() == [SIMULATOR_CHOSEN, "no package nki is installed", "[]"]


@pytest.mark.parametrize("backend", [None, "auto"])
def test_auto_treats_a_stub_as_absent_and_remembers_why(backend: str | None, tmp_path: Path) -> None:
    outcome = run_fresh(SHOW_CHOICE, backend, before=[make_tree(tmp_path, STUB)])
    assert outcome.error == ""
    reason = f"the installed package nki is a stub that refuses to import: {STUB_SAYS}"
    assert outcome.output.splitlines() == [SIMULATOR_CHOSEN, reason, "[]"]


def test_a_stub_that_loads_a_part_of_itself_leaves_nothing_behind(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"nki/__init__.py": "import nki.notice", "nki/notice.py": "VALUE = 1"})
    (tree / "nki" / "__init__.py").write_text(f"import nki.notice\nraise ImportError({STUB_SAYS!r})")
    outcome = run_fresh(SHOW_CHOICE, before=[tree])
    assert outcome.error == ""
    assert outcome.output.splitlines()[2] == "[]"


def test_auto_ignores_a_plain_directory_named_nki(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"nki/kernels.py": ""})
    outcome = run_fresh(SHOW_CHOICE, "auto", after=[tree])
    assert outcome.error == ""
    reason = f"no package nki is installed, only a plain directory of that name: {tree / 'nki'}"
    assert outcome.output.splitlines() == [SIMULATOR_CHOSEN, reason, "[]"]


@pytest.mark.parametrize("backend", [None, "", "auto", "neuron"])
def test_the_real_nki_is_chosen_where_it_is_installed(backend: str | None, tmp_path: Path) -> None:
    tree = make_tree(tmp_path, REAL)
    outcome = run_fresh(SHOW_CHOICE + "print(nki.OWNER, nisa.OWNER, nl.OWNER, sep=', ')", backend, before=[tree])
    assert outcome.error == ""
    assert outcome.output.splitlines() == [
        REAL_CHOSEN,
        f"nki 0.7.0 is installed: {tree / 'nki' / '__init__.py'}",
        "['nki', 'nki.isa', 'nki.language']",
        "real nki, real isa, real language",
    ]


def test_the_real_nki_that_is_imported_already_is_chosen(tmp_path: Path) -> None:
    outcome = run_fresh("import nki\n" + SHOW_CHOICE, before=[make_tree(tmp_path, REAL)])
    assert outcome.error == ""
    assert outcome.output.splitlines()[0] == REAL_CHOSEN


SHOW_HELPER = """
import inspect, sys
from nkilib.nki import explain_index
print(explain_index.__module__, "nkilib.simulator" in sys.modules)
print(*inspect.signature(explain_index).parameters)
"""
HELPER_TAKES = "index what values first_row row_step limit at_fault"


def test_on_hardware_the_helper_for_errors_is_empty_and_needs_no_simulator(tmp_path: Path) -> None:
    called = "print(explain_index('index', what='target', values='targets', first_row=0, row_step=2, limit=9))"
    outcome = run_fresh(SHOW_HELPER + called, "neuron", before=[make_tree(tmp_path, REAL)])
    assert outcome.error == ""
    assert outcome.output.splitlines() == ["nkilib.nki False", HELPER_TAKES, "None"]


def test_in_simulation_the_helper_for_errors_is_the_simulators() -> None:
    outcome = run_fresh(SHOW_HELPER, "simulator")
    assert outcome.error == ""
    assert outcome.output.splitlines() == ["nkilib.simulator.language.programs True", HELPER_TAKES]


def test_simulator_does_not_look_for_the_real_nki(tmp_path: Path) -> None:
    outcome = run_fresh(SHOW_CHOICE, "simulator", before=[make_tree(tmp_path, REAL)])
    assert outcome.error == ""
    assert outcome.output.splitlines() == [SIMULATOR_CHOSEN, "NKILIB_BACKEND=simulator", "[]"]


def test_neuron_fails_where_nki_is_absent() -> None:
    outcome = run_fresh(ABSENT + "import nkilib.nki", "neuron")
    assert outcome.error == (
        "ImportError: nkilib.nki: NKILIB_BACKEND=neuron requires the real NKI, but no package nki is installed. "
        + REMEDY
    )


def test_neuron_fails_with_a_stub_and_says_that_it_is_one(tmp_path: Path) -> None:
    outcome = run_fresh("import nkilib.nki", "neuron", before=[make_tree(tmp_path, STUB)])
    assert outcome.error == (
        "ImportError: nkilib.nki: NKILIB_BACKEND=neuron requires the real NKI, but the installed package nki is a stub "
        f"that refuses to import: {STUB_SAYS}. " + REMEDY
    )


AS_INSTALLED = """
import sys
import nkilib.simulator.api.nki
sys.modules["nki"] = nkilib.simulator.api.nki
"""


def test_the_simulator_under_the_name_nki_is_not_mistaken_for_the_real_one() -> None:
    outcome = run_fresh(AS_INSTALLED + SHOW_CHOICE, "auto")
    assert outcome.error == ""
    assert outcome.output.splitlines() == [
        SIMULATOR_CHOSEN,
        "the nki in sys.modules is nkilib's simulator",
        "['nki']",
    ]


def test_neuron_fails_where_the_simulator_has_the_name_nki() -> None:
    outcome = run_fresh(AS_INSTALLED + "import nkilib.nki", "neuron")
    assert outcome.error == (
        "ImportError: nkilib.nki: NKILIB_BACKEND=neuron requires the real NKI, but the nki in sys.modules is nkilib's "
        "simulator. " + REMEDY
    )


BROKEN: dict[str, tuple[dict[str, str | None], str]] = {
    "a part is missing": ({"nki/language/__init__.py": None}, "ModuleNotFoundError: No module named 'nki.language'"),
    "a dependency is missing": (
        {"nki/__init__.py": "import a_compiler_that_is_absent"},
        "ModuleNotFoundError: No module named 'a_compiler_that_is_absent'",
    ),
    "a shared library is missing": (
        {"nki/__init__.py": "raise ImportError('no libnki.so', name='nki._core')", "nki/isa/__init__.py": None},
        "ImportError: no libnki.so",
    ),
    "it refuses, and is no stub": ({"nki/__init__.py": "raise ImportError('no driver')"}, "ImportError: no driver"),
    "it fails otherwise": ({"nki/isa/__init__.py": "raise RuntimeError('no device')"}, "RuntimeError: no device"),
    "it is another package": ({"nki/isa/__init__.py": None}, "ModuleNotFoundError: No module named 'nki.isa'"),
}


@pytest.mark.parametrize("backend", ["auto", "neuron"])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_nki_is_an_error_and_not_a_reason_to_simulate(fault: str, backend: str, tmp_path: Path) -> None:
    changes, message = BROKEN[fault]
    files = {name: source for name, source in {**REAL, **changes}.items() if source is not None}
    tree = make_tree(tmp_path, files)
    caught = """
import sys
try:
    import nkilib.nki
except ImportError as error:
    print(error)
print(sorted(name for name in sys.modules if name.partition(".")[0] == "nki"))
"""
    outcome = run_fresh(caught, backend, before=[tree])
    assert outcome.error == ""
    assert outcome.output.splitlines() == [
        "nkilib.nki: the installed package nki cannot be imported as NKI (nki, nki.isa, nki.language): "
        f"{message}. Repair or remove it, or set NKILIB_BACKEND=simulator.",
        "[]",
    ]


def of_version(version: str | None) -> dict[str, str]:
    """The files of a real NKI that says it has this version, or says nothing."""
    message = f"; __version__ = {version!r}" if version else ""
    return REAL | {"nki/__init__.py": f"OWNER = 'real nki'{message}"}


def recorded_as(root: Path, version: str) -> None:
    """Write what an installer records of a distribution nki."""
    information = root / f"nki-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nki\nVersion: {version}\n")


TRY_TO_IMPORT = """
import sys
try:
    import nkilib.nki
except ImportError as error:
    print(type(error).__name__, error)
print(sorted(name for name in sys.modules if name.partition(".")[0] == "nki"))
"""


@pytest.mark.parametrize(
    "version",
    ["0.7", "0.7.0", "0.7.0b1", "0.7.0.dev3", "0.7.1+98765.gabc", "0.8.0a1", "0.10", "1.0", "v0.7.2", "1!0.7"],
)
def test_release_0_7_and_later_run_kernels(version: str, tmp_path: Path) -> None:
    outcome = run_fresh(SHOW_CHOICE, before=[make_tree(tmp_path, of_version(version))])
    assert outcome.error == ""
    chosen, reason, _ = outcome.output.splitlines()
    assert chosen == REAL_CHOSEN
    assert reason.startswith(f"nki {version} is installed: ")


@pytest.mark.parametrize("backend", [None, "neuron"])
@pytest.mark.parametrize("version", ["0.6.0", "0.6.99", "0.1", "0", "0.6.0+98765", "unknown"])
def test_an_older_nki_is_refused_by_version(version: str, backend: str | None, tmp_path: Path) -> None:
    tree = make_tree(tmp_path, of_version(version))
    outcome = run_fresh(TRY_TO_IMPORT, backend, before=[tree])
    assert outcome.error == ""
    assert outcome.output.splitlines() == [
        f"ImportError nkilib.nki: the kernels need nki 0.7 or later, found nki {version} in "
        f"{tree / 'nki' / '__init__.py'}. Upgrade the Neuron SDK, or set NKILIB_BACKEND=simulator.",
        "[]",
    ]


def test_the_version_is_looked_at_before_parts_that_an_older_nki_may_lack(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"nki/__init__.py": "__version__ = '0.4.0'"})
    assert "found nki 0.4.0" in run_fresh("import nkilib.nki", before=[tree]).error


def test_a_version_that_nki_does_not_say_is_that_of_its_installation(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, of_version(None))
    recorded_as(tree, "0.6.1")
    assert "found nki 0.6.1" in run_fresh("import nkilib.nki", before=[tree]).error


def test_what_nki_says_of_its_version_goes_before_what_is_recorded(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, of_version("0.7.0"))
    recorded_as(tree, "0.6.1")
    outcome = run_fresh(SHOW_CHOICE, before=[tree])
    assert outcome.error == ""
    assert outcome.output.splitlines()[0] == REAL_CHOSEN


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, of_version(None))
    outcome = run_fresh("import nkilib.nki", before=[tree])
    assert outcome.error == (
        "ImportError: nkilib.nki: the kernels need nki 0.7 or later, and the version of the nki in "
        f"{tree / 'nki' / '__init__.py'} cannot be told: it has no __version__, and no distribution nki is installed. "
        "Install it with pip from the Neuron package repository, or set NKILIB_BACKEND=simulator."
    )


def test_the_old_frontend_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", "custom")
    tree = make_tree(tmp_path, REAL)
    outcome = run_fresh(TRY_TO_IMPORT, before=[tree])
    assert outcome.error == ""
    assert outcome.output.splitlines() == [
        "ImportError nkilib.nki: the kernels need nki 0.7 or later with its own frontend, which runs them as Python; "
        "found nki 0.7.0 with NKI_COMPILER_FRONTEND=custom, which reads them as older releases did. Unset "
        "NKI_COMPILER_FRONTEND, or set NKILIB_BACKEND=simulator.",
        "[]",
    ]


@pytest.mark.parametrize("backend", ["auto", "simulator"])
def test_the_frontend_of_an_absent_nki_does_not_matter(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", "custom")
    outcome = run_fresh(ABSENT + SHOW_CHOICE, backend)
    assert outcome.error == ""
    assert outcome.output.splitlines()[0] == SIMULATOR_CHOSEN


@pytest.mark.parametrize("frontend", ["", "tracer"])
def test_other_frontends_pass(frontend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", frontend)
    outcome = run_fresh(SHOW_CHOICE, before=[make_tree(tmp_path, REAL)])
    assert outcome.error == ""
    assert outcome.output.splitlines()[0] == REAL_CHOSEN


@pytest.mark.parametrize("value", ["Neuron", "cpu", " auto"])
def test_an_unknown_value_is_refused(value: str) -> None:
    outcome = run_fresh("import nkilib.nki", value)
    assert outcome.error == (
        f"ValueError: nkilib.nki: NKILIB_BACKEND must be one of auto, neuron, simulator; got {value!r}."
    )


def test_the_choice_cannot_be_changed_afterwards() -> None:
    outcome = run_fresh("from nkilib.nki import backend\nbackend.name = 'neuron'", "simulator")
    assert outcome.error == "dataclasses.FrozenInstanceError: cannot assign to field 'name'"
