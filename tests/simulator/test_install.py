# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.install()`` and ``python -m nkilib.simulator``: files that say ``import nki`` run unmodified."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nkilib import __version__
from nkilib.simulator.__main__ import main
from nkilib.simulator.terms.other_names import FIRST_NKI
from tests.fresh_python import run_fresh, with_checkout
from tests.hangs import HANG_SECONDS

KERNEL = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NKIObject
from nki.isa.constants import dge_mode, oob_mode
from nki.typing import tensor
import nki.collectives as collectives
from nki.compiler import CompileConfig
import nki.dtype as types


@nki.jit(compile_config=CompileConfig())
def double(x: tensor, dtype: nki.dtype = nl.float32):
    tile = nl.ndarray(x.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    result = nl.ndarray(x.shape, dtype=dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=tile)
    return result


print(double(np.arange(3, dtype=np.float32).reshape(1, 3)).tolist(), types.bfloat16, nisa.get_nc_version().name)
"""
PRINTED = "[[0.0, 2.0, 4.0]] bfloat16 gen3"
INSTALL = "import nkilib.simulator\nnkilib.simulator.install()\n"


def make_package(root: Path, name: str, source: str = "", **parts: str) -> Path:
    """A directory with the package ``name`` and, by name, its subpackages."""
    for path, text in {"": source, **parts}.items():
        directory = root / name / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "__init__.py").write_text(text)
    return root


def test_import_nki_gives_the_simulator() -> None:
    outcome = run_fresh(INSTALL + KERNEL)
    assert (outcome.error, outcome.output) == ("", PRINTED)


def test_nothing_is_installed_by_importing_the_simulator() -> None:
    outcome = run_fresh(
        "import nkilib.simulator, nkilib.nki, sys\nprint([n for n in sys.modules if n.startswith('nki.')])"
    )
    assert (outcome.error, outcome.output) == ("", "[]")


def test_installing_again_changes_nothing() -> None:
    outcome = run_fresh(INSTALL + "import nki\nbefore = nki\n" + INSTALL + "import nki\nprint(nki is before)")
    assert (outcome.error, outcome.output) == ("", "True")


def test_both_ways_lead_to_the_same_modules() -> None:
    outcome = run_fresh(INSTALL + "import nki.isa, nkilib.nki\nprint(nki.isa is nkilib.nki.nisa, nkilib.nki.SIMULATED)")
    assert (outcome.error, outcome.output) == ("", "True True")


def test_the_stub_of_the_public_index_is_passed_over(tmp_path: Path) -> None:
    stub = make_package(tmp_path, "nki", "raise ImportError('wrong package')")
    outcome = run_fresh(INSTALL + KERNEL, before=[stub])
    assert (outcome.error, outcome.output) == ("", PRINTED)


def test_the_real_nki_is_never_hidden(tmp_path: Path) -> None:
    real = make_package(tmp_path, "nki", isa="", language="")
    outcome = run_fresh(INSTALL, before=[real])
    place = tmp_path / "nki" / "__init__.py"
    assert outcome.error == (
        f"RuntimeError: nkilib.simulator.install: the real nki is installed ({place}), and 'import nki' shall mean "
        "that one. To simulate beside it, set NKILIB_BACKEND=simulator and say 'from nkilib.nki import nki, nisa, nl'"
    )


def test_an_nki_that_is_imported_already_is_not_replaced(tmp_path: Path) -> None:
    other = make_package(tmp_path, "nki")
    outcome = run_fresh("import nki\n" + INSTALL, before=[other])
    assert outcome.error.startswith("RuntimeError: nkilib.simulator.install: a module nki is imported already (")
    assert outcome.error.endswith("; call install() before the first import of nki")


ANNOTATION = "import neuronxcc.nki.typing as nt\nprint(nt.mutable_tensor.__name__)"


def test_annotations_of_the_first_release_are_importable() -> None:
    """A file that imports nki takes ``mutable_tensor`` from the package of the compiler."""
    outcome = run_fresh(INSTALL + ANNOTATION)
    assert (outcome.error, outcome.output) == ("", "NkiTensor")


OF_THE_FIRST = {
    "import neuronxcc.nki.language as nl": "No module named 'neuronxcc.nki.language'",
    "from neuronxcc.nki import isa": "No module named 'neuronxcc.nki.isa'",
    "from neuronxcc.nki import trace": "No module named 'neuronxcc.nki.trace'",
    "import neuronxcc.nki as nki; nki.trace": "module 'neuronxcc.nki' has no attribute 'trace'",
}


def test_the_modules_of_the_first_release_say_what_replaced_them() -> None:
    each = f"for code in {list(OF_THE_FIRST)!r}:\n try: exec(code)\n except Exception as error: print(error)"
    expected = [
        f"{asked}; {FIRST_NKI}{', and use nki.jit' if 'trace' in code else ''}" for code, asked in OF_THE_FIRST.items()
    ]
    assert run_fresh(INSTALL + each).output.splitlines() == expected


def test_the_installed_compiler_is_never_hidden(tmp_path: Path) -> None:
    typing = "class mutable_tensor: __name__ = 'its own'"
    real = make_package(tmp_path, "neuronxcc", **{"nki": "", "nki/typing": typing})
    outcome = run_fresh(INSTALL + ANNOTATION, before=[real])
    assert (outcome.error, outcome.output) == ("", "mutable_tensor")


# -- The command -------------------------------------------------------------------------------------------------------


def command(*arguments: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m nkilib.simulator`` in ``directory``."""
    return subprocess.run(
        [sys.executable, "-m", "nkilib.simulator", *arguments],
        env=with_checkout("NEURON_PLATFORM_TARGET_OVERRIDE", **environment),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def test_the_command_runs_a_script_with_its_arguments(tmp_path: Path) -> None:
    """The script's own directory comes first on the path, as with ``python script.py``."""
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    (tmp_path / "script.py").write_text(KERNEL + "import sys, beside\nprint(sys.argv[1:], __name__, beside.WORD)")
    process = command(str(tmp_path / "script.py"), "--rows", "3", directory=tmp_path.parent)
    assert (process.stderr, process.returncode) == ("", 0)
    assert process.stdout.splitlines() == [PRINTED, "['--rows', '3'] __main__ found"]


def test_the_command_runs_a_module(tmp_path: Path) -> None:
    package = make_package(tmp_path, "kernels")
    (package / "kernels" / "double.py").write_text(KERNEL + "import sys\nprint(sys.argv[1:], __name__)")
    process = command("-m", "kernels.double", "-x", directory=tmp_path)
    assert (process.stderr, process.returncode) == ("", 0)
    assert process.stdout.splitlines() == [PRINTED, "['-x'] __main__"]


LEVELS = """
from nkilib.simulator.hardware.options import current_options
print(current_options().lost_results, current_options().uninitialized)
"""


def test_options_of_the_command_are_those_of_the_simulation(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KERNEL + LEVELS)
    process = command("--target", "trn3", "--strict", "--uninitialized", "warn", "script.py", directory=tmp_path)
    assert (process.stderr, process.stdout) == ("", PRINTED.replace("gen3", "gen4") + "\nerror warn\n")


def test_without_options_the_environment_holds(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KERNEL)
    process = command("script.py", directory=tmp_path, NEURON_PLATFORM_TARGET_OVERRIDE="trn3", NKI_SIMULATOR="1")
    assert (process.stderr, process.stdout) == ("", PRINTED.replace("gen3", "gen4") + "\n")


def test_an_error_of_the_kernel_names_its_line_and_ends_the_command(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(KERNEL.replace("op0=nl.multiply", "op0=nl.exp"))
    process = command(str(script), directory=tmp_path)
    line = 1 + script.read_text().splitlines().index(
        "    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.exp, operand0=2.0)"
    )
    assert process.returncode == 1
    assert f"NkiValidationError: {script}:{line}: nisa.tensor_scalar: op0=nl.exp" in process.stderr


def test_the_version_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"nkilib {__version__}\n"


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    process = command("nothing.py", directory=tmp_path)
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1] == "python -m nkilib.simulator: error: there is no script 'nothing.py'"


@pytest.mark.parametrize("arguments", [(), ("-m",)])
def test_the_command_wants_something_to_run(arguments: tuple[str, ...], tmp_path: Path) -> None:
    process = command(*arguments, directory=tmp_path)
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1] == "python -m nkilib.simulator: error: name a script, or a module after -m"
