# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The wheel and the editable installation, beside AWS's package of the same name and alone; mixtures are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import hatchling.build
import pytest

from nkilib import __version__
from tests.fresh_python import CHECKOUT, with_checkout

# What the package of AWS has where ours has something too. Its first file imports every module beside it.
THEIRS = {
    "nkilib/__init__.py": """
import importlib, pkgutil
for _, name, _ in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{name}")
OWNER = "theirs"
""",
    "nkilib/core/__init__.py": "",
    "nkilib/core/attention.py": "OWNER = 'theirs'",
    "nkilib/experimental/__init__.py": "",
    "nkilib/experimental/loss/__init__.py": "",
    "nkilib/experimental/loss/cross_entropy.py": "OWNER = 'theirs'",
    "nkilib/experimental/loss/validation.py": "OWNER = 'theirs'",
}
COMPILER = "neuronx_cc-2.28.7631.0"
IMPORT_BOTH = """
import nkilib, nkilib.nki, nkilib.simulator
from nkilib import __version__
from nkilib.core.attention import OWNER
from nkilib.experimental.loss import cross_entropy_forward
print(nkilib.__version__, nkilib.__file__, OWNER)
"""


@dataclass(frozen=True)
class Machine:
    """A virtual environment with numpy and ml_dtypes, for a test to install into."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / ("Scripts" if os.name == "nt" else "bin") / "python"

    @property
    def site(self) -> Path:
        [site] = self.root.glob("**/site-packages")
        return site

    def pip(self, *arguments: str | Path) -> None:
        """pip of this environment, run in the other one."""
        command = ["-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
        done = self.run(*command, PYTHONPATH=str(self.root / "only-pip"))
        assert done.returncode == 0, done.stderr

    def install(self, wheel: Path) -> None:
        """Install a wheel with pip."""
        self.pip("install", "--no-deps", "--no-index", "--no-compile", "--force-reinstall", wheel)

    def unpack(self, *wheels: Path) -> None:
        """Do what an installation comes to, sooner: a wheel's paths are those in site-packages."""
        for wheel in wheels:
            shutil.unpack_archive(wheel, self.site, "zip")

    def run(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run its Python where there is nothing to import from."""
        unwanted = ("PYTHONPATH", "NKILIB_BACKEND", "NKILIB_FORCE_BUNDLED_LIBRARY")
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        return subprocess.run(
            [self.python, *arguments], env=environment | variables, cwd=self.root, capture_output=True, text=True
        )

    def error_of(self, code: str, tree: Path) -> str:
        """The last line of what lines of Python end with, where PYTHONPATH names a tree."""
        done = self.run("-c", code, PYTHONPATH=str(tree), NKILIB_BACKEND="simulator")
        assert done.returncode == 1
        return done.stderr.strip().splitlines()[-1]

    def prints(self, code: str, **variables: str) -> str:
        done = self.run("-c", code, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ours as `pip install .` and `pip install -e .` build it, and a compiler that brings the package of AWS."""
    built = tmp_path_factory.mktemp("wheels")
    before = Path.cwd()
    os.chdir(CHECKOUT)  # as a build frontend does
    try:
        ours = built / hatchling.build.build_wheel(str(built))
        (built / "editable").mkdir()
        editable = built / "editable" / hatchling.build.build_editable(str(built / "editable"))
    finally:
        os.chdir(before)
    return {"ours": ours, "editable": editable, "theirs": _wheel(built, COMPILER, THEIRS)}


def _wheel(directory: Path, name: str, files: Mapping[str, str]) -> Path:
    """A wheel with these files, source by path."""
    distribution, _, version = name.rpartition("-")
    information = {
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents = {**files, **information}
    record = f"{name}.dist-info/RECORD"
    wheel = directory / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
        archive.writestr(record, "".join(f"{path},,\n" for path in (*contents, record)))
    return wheel


def _new_machine(root: Path) -> Machine:
    """A new environment, which has numpy and ml_dtypes of this one and nothing else of it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], env=with_checkout(), check=True)
    made = Machine(root)
    # pip is not imported: in the process that does, setuptools, and what of PyTorch takes it, cannot be imported later.
    for name, directory in (("numpy", made.site), ("ml_dtypes", made.site), ("pip", root / "only-pip")):
        directory.mkdir(exist_ok=True)
        home = Path(str(metadata.distribution(name).locate_file(name)))
        for part in home.parent.glob(f"{home.name}*"):  # with its metadata and libraries
            (directory / part.name).symlink_to(part)
    return made


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A new environment to install into."""
    return _new_machine(tmp_path / "environment")


@pytest.fixture(scope="module")
def bare_machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """An environment without any nkilib, for trees that PYTHONPATH names. Nothing is installed into it."""
    return _new_machine(tmp_path_factory.mktemp("bare") / "environment")


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the doctor's findings by the thing that it looked at, their folded lines joined."""
    assert done.stderr == ""
    report: dict[str, str] = {}
    what = ""
    for line in done.stdout.splitlines():
        if line.startswith(" "):
            report[what] += f" {line.strip()}"
        else:
            what, _, text = line.partition("  ")
            report[what] = text.strip()
    return report


def test_the_wheel_writes_none_of_their_paths(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["ours"]).namelist()
    top = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"nkilib-packages", "nkilib-packages.pth", "_nkilib_first.py"}
    ours = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "nkilib").rglob("*.py")} | {"nkilib/py.typed"}
    ours |= {f"nkilib/simulator/profiling/page/report.{suffix}" for suffix in ("html", "css", "js")}
    assert {name.removeprefix("nkilib-packages/") for name in names if name.startswith("nkilib-packages/")} == ours


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("kind", ["ours", "editable"])
def test_ours_is_imported_beside_theirs_and_leaves_them_whole(
    first: str, kind: str, wheels: dict[str, Path], machine: Machine
) -> None:
    if first == "theirs":
        machine.unpack(wheels["theirs"])
    machine.install(wheels[kind])
    if first == "ours":
        machine.unpack(wheels["theirs"])
    home = CHECKOUT if kind == "editable" else machine.site / "nkilib-packages"
    assert machine.prints(IMPORT_BOTH) == f"{__version__} {home / 'nkilib' / '__init__.py'} theirs"

    doctor = machine.run("-m", "nkilib", "doctor")
    assert doctor.returncode == 0
    # The command of the same name is in the environment's directory of programs, and is no package there.
    assert machine.run(machine.python.parent / "nkilib", "doctor").stdout == doctor.stdout
    report = report_of(doctor)
    assert report["nkilib"] == f"{__version__}, {home / 'nkilib'}"
    assert report["another nkilib"] == (
        f"{os.path.realpath(machine.site / 'nkilib')} (of neuronx_cc 2.28.7631.0), behind this one, which is imported; "
        "modules that only that one has stay importable"
    )

    machine.pip("uninstall", "--yes", "nkilib")
    left = {path: (machine.site / path).read_text() for path in THEIRS}
    assert left == THEIRS
    assert machine.prints("import nkilib, nkilib.core.attention; print(nkilib.OWNER)") == "theirs"
    of_ours = [path for path in machine.site.rglob("*") if "nkilib" in path.relative_to(machine.site).parts[0]]
    assert {path.relative_to(machine.site).parts[0] for path in of_ours if path.is_file()} == {"nkilib"}


def test_one_kind_of_installation_takes_the_place_of_the_other(wheels: dict[str, Path], machine: Machine) -> None:
    machine.unpack(wheels["theirs"])
    installed, editable = ("ours", machine.site / "nkilib-packages"), ("editable", CHECKOUT)
    for kind, home in (installed, editable, installed):
        machine.install(wheels[kind])
        assert machine.prints("import nkilib; print(nkilib.__file__)") == str(home / "nkilib" / "__init__.py")


def test_theirs_can_be_removed_from_beside_ours(wheels: dict[str, Path], machine: Machine) -> None:
    machine.unpack(wheels["theirs"], wheels["ours"])
    machine.pip("uninstall", "--yes", "neuronx_cc")
    assert (
        machine.prints("import nkilib.experimental.loss as loss; print(loss.choose_tiling.__name__)") == "choose_tiling"
    )
    assert "another nkilib" not in report_of(machine.run("-m", "nkilib", "doctor"))


@pytest.mark.parametrize("kind", ["ours", "editable"])
def test_the_variable_of_theirs_asks_for_theirs(kind: str, wheels: dict[str, Path], machine: Machine) -> None:
    machine.unpack(wheels["theirs"], wheels[kind])
    code = "import nkilib; print(getattr(nkilib, 'OWNER', 'ours'))"
    for value, owner in (("1", "theirs"), ("True", "theirs"), ("0", "ours"), ("", "ours")):
        assert machine.prints(code, NKILIB_FORCE_BUNDLED_LIBRARY=value) == owner


def test_ours_alone_and_what_stands_before_it(wheels: dict[str, Path], machine: Machine, tmp_path: Path) -> None:
    machine.unpack(wheels["ours"])
    own = machine.site / "nkilib-packages"
    path = machine.prints("import sys; print(*sys.path, sep='\\n')").splitlines()
    assert path.index(str(own)) + 1 == path.index(str(machine.site))
    # A checkout that PYTHONPATH names stays before the installation.
    result = machine.prints("import nkilib.nki; print(nkilib.nki.__file__)", PYTHONPATH=str(CHECKOUT))
    assert result == str(CHECKOUT / "nkilib" / "nki.py")


def test_the_source_distribution_builds_the_same_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """The archive has everything that `make`, the tests and the wheel need, and nothing that git ignores."""
    before = Path.cwd()
    os.chdir(CHECKOUT)
    try:
        archive = tmp_path / hatchling.build.build_sdist(str(tmp_path))
    finally:
        os.chdir(before)
    shutil.unpack_archive(archive, tmp_path)
    [root] = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {"Makefile", "README.md", "constraints.txt", "docs", "examples", "layout", "nkilib", "tests"} <= {
        path.name for path in root.iterdir()
    }
    assert not {".venv", ".git", ".mypy_cache"} & {path.name for path in root.iterdir()}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "built"]
    subprocess.run(command, cwd=root, env=with_checkout(), check=True, capture_output=True)
    [wheel] = (tmp_path / "built").iterdir()
    assert zipfile.ZipFile(wheel).namelist() == zipfile.ZipFile(wheels["ours"]).namelist()


# Mixtures. An older installation of ours is left over in their directory, or a finder leads into our directory.

FINDER = f"""
import sys
from importlib.machinery import PathFinder

class OfOurs:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(CHECKOUT)!r} + "/" + "/".join(name.split(".")[:-1])])

sys.meta_path.append(OfOurs)  # behind the import path, as editable installations have been
"""


@pytest.fixture
def led_into_ours(tmp_path: Path) -> Path:
    """Theirs on the path, and a finder that brings modules of ours into it."""
    tree = tmp_path / "mixed"
    for name, source in {**THEIRS, "sitecustomize.py": FINDER}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(source)
    return tree


@pytest.fixture
def one_directory(tmp_path: Path) -> Path:
    """Theirs, installed over ours."""
    tree = tmp_path / "mixed"
    shutil.copytree(CHECKOUT / "nkilib", tree / "nkilib", ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in THEIRS.items():
        (tree / name).write_text(source)
    return tree


@pytest.mark.parametrize("module", ["nki", "simulator", "torch", "simulator.profiling"])
def test_importing_ours_as_part_of_theirs_is_one_clear_error(
    module: str, led_into_ours: Path, bare_machine: Machine
) -> None:
    theirs = led_into_ours / "nkilib" / "__init__.py"
    assert bare_machine.error_of(f"import nkilib.{module}", led_into_ours) == (
        f"ImportError: nkilib: modules of {CHECKOUT / 'nkilib'} are mixed with another package nkilib (the Neuron "
        f"compiler installs one): nkilib is {theirs}. Put {CHECKOUT} first on the import path, in PYTHONPATH, or "
        "install nkilib with pip, which puts it before the other (docs/how_to/install_beside_the_sdk.md)."
    )


def _in_one_directory(tree: Path) -> str:
    return (
        f"nkilib: modules of {tree / 'nkilib'} are mixed with another package nkilib (the Neuron compiler installs "
        f"one): nkilib is {tree / 'nkilib' / '__init__.py'}. Both are in that directory: uninstall nkilib, reinstall "
        "the other package, and install nkilib again, which has a directory of its own "
        "(docs/how_to/install_beside_the_sdk.md)."
    )


def test_theirs_over_ours_is_one_clear_error(one_directory: Path, bare_machine: Machine) -> None:
    error = bare_machine.error_of("import nkilib", one_directory)
    assert error == f"ImportError: {_in_one_directory(one_directory)}"


def test_ours_without_the_files_that_both_had_is_refused(one_directory: Path, bare_machine: Machine) -> None:
    """A removal of theirs leaves this state: a directory without __init__ is still a package to Python."""
    for name in THEIRS:
        (one_directory / name).unlink()
    error = bare_machine.error_of("import nkilib.simulator", one_directory)
    assert error.startswith(f"ImportError: nkilib: modules of {one_directory / 'nkilib'} are mixed with ")
    assert ": nkilib is missing. Put " in error


@pytest.mark.parametrize("package", ["core", "experimental", "experimental/loss"])
def test_theirs_as_part_of_ours_is_refused(package: str, tmp_path: Path, bare_machine: Machine) -> None:
    origin = tmp_path / "nkilib" / package / "__init__.py"
    origin.parent.mkdir(parents=True)
    origin.touch()
    outer, _, _ = f"nkilib/{package}".rpartition("/")
    code = f"import {outer.replace('/', '.')} as outer\nouter.__path__.insert(0, {str(tmp_path / outer)!r})\n"
    error = bare_machine.error_of(f"{code}import nkilib.nki", CHECKOUT)
    assert f": nkilib.{package.replace('/', '.')} is {origin}. Put {CHECKOUT} first on" in error


def test_the_doctor_runs_in_a_mixture_and_names_it(led_into_ours: Path, bare_machine: Machine) -> None:
    done = bare_machine.run("-m", "nkilib", "doctor", PYTHONPATH=str(led_into_ours))
    assert done.returncode == 1
    report = report_of(done)
    theirs = led_into_ours / "nkilib"
    assert report["nkilib"].startswith(f"cannot be used: nkilib: modules of {CHECKOUT / 'nkilib'} are mixed with ")
    assert f": nkilib is {theirs / '__init__.py'}. Put {CHECKOUT} first on the import path" in report["nkilib"]
    assert report["another nkilib"] == f"{theirs}, mixed with this one"
    assert report["nki"] == "cannot be used: see nkilib"
    assert report["numpy"][0].isdigit()


def test_the_doctor_runs_where_their_package_cannot_be_imported(one_directory: Path, bare_machine: Machine) -> None:
    """Python warns that it has seen the command before: it was imported with all else."""
    done = bare_machine.run("-m", "nkilib", "doctor", PYTHONPATH=str(one_directory))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"cannot be used: {_in_one_directory(one_directory)}" in " ".join(done.stdout.split())


def test_the_doctor_names_another_owner_of_the_same_directory(one_directory: Path, bare_machine: Machine) -> None:
    """Ours installed over theirs, as before it had a directory of its own: it runs, until one of them is removed."""
    for name in THEIRS:
        if (CHECKOUT / name).is_file():
            shutil.copy(CHECKOUT / name, one_directory / name)
    for distribution, version in (("neuronx-cc", "2.28.7631.0"), ("nkilib", "0.0.9")):
        information = one_directory / f"{distribution}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (information / "RECORD").write_text("nkilib/__init__.py,,\n")
    done = bare_machine.run("-m", "nkilib", "doctor", PYTHONPATH=str(one_directory))
    assert done.returncode == 0
    message = report_of(done)["another nkilib"]
    assert message.startswith(f"{one_directory / 'nkilib'} (of ") and "neuronx-cc 2.28.7631.0" in message
    assert "in the same directory: removing one breaks the other. Uninstall both, then install that one" in message


def test_where_only_theirs_is_reached_there_is_no_doctor(wheels: dict[str, Path], machine: Machine) -> None:
    """docs/how_to/install_beside_the_sdk.md says what to do then: name our directory in PYTHONPATH."""
    machine.unpack(wheels["theirs"], wheels["ours"])
    done = machine.run("-m", "nkilib", "doctor", NKILIB_FORCE_BUNDLED_LIBRARY="1")
    assert done.returncode == 1
    assert "No module named nkilib.__main__; 'nkilib' is a package and cannot be directly executed" in done.stderr
    own = str(machine.site / "nkilib-packages")
    done = machine.run("-m", "nkilib", "doctor", NKILIB_FORCE_BUNDLED_LIBRARY="1", PYTHONPATH=own)
    assert report_of(done)["nkilib"] == f"{__version__}, {own}{os.sep}nkilib"
