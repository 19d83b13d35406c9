# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Files that say ``import nki`` run unmodified: ``install()``, the command, and the stand-in for ``torch_xla``."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nkilib import __version__
from nkilib.simulator import xla_stand_in
from nkilib.simulator.__main__ import main
from nkilib.simulator.api import stand_ins as aliases
from nkilib.simulator.terms.other_names import FIRST_NKI
from nkilib.simulator.xla_stand_in import NotInStandInError, advice, install_stand_in
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


# The stand-in for ``torch_xla`` with which ``python -m nkilib.simulator`` runs AWS's example scripts.
#
# Whole scripts of AWS's were run from outside this repository; here is one of their form, and every name by itself.

SCRIPT = """
import torch
import torch_neuronx
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.core import xla_model

import nki
import nki.language as nl


@nki.jit
def double(x):
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(result, value=nl.multiply(nl.load(x), 2.0))
    return result


device = xm.xla_device()
a = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).to(device=device)
xm.mark_step()
result = double(a)
torch_xla.sync()
print(result.to(torch.device("cpu")).tolist(), torch_xla.device() == device == result.device, xla_model is xm)
"""


def test_a_script_of_the_form_of_awss_examples_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = command("script.py", directory=tmp_path)
    assert (done.stdout, done.stderr) == ("[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]] True True\n", "")


def test_what_is_not_there_ends_a_script_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("def main():\n    import neuronxcc.nki.language as nl\n\nmain()\n")
    done = command("script.py", directory=tmp_path)
    message = (
        "python -m nkilib.simulator: No module named 'neuronxcc.nki.language': this script is written for the first "
        "NKI, in the package neuronxcc; the simulator has NKI 0.7: change its imports to nki, nki.isa and "
        "nki.language, as AWS's migration guide says\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Yield a namespace in place of an imported torch, while the stand-in is installed; nothing of it stays behind."""
    seeds: list[int] = [7]
    module = SimpleNamespace(
        device=lambda kind: ("device", kind),
        initial_seed=lambda: seeds[-1],
        manual_seed=lambda seed: seeds.append(seed),
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install_stand_in()
    yield module
    for name in xla_stand_in._MODULES:
        sys.modules.pop(name, None)


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_devices_and_steps(torch: Any) -> None:
    xla, xm = imported("torch_xla"), imported("torch_xla.core.xla_model")
    assert xla.device() == xla.device(0) == xm.xla_device() == xm.xla_device(n=1) == ("device", "cpu")
    for nothing in (xla.sync, xm.mark_step, xm.wait_device_ops, lambda: xm.rendezvous("end")):
        assert nothing() is None
    with xla.step():
        pass


def test_one_process(torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    xm = imported("torch_xla.core.xla_model")
    assert (xm.get_ordinal(), xm.get_local_ordinal(), xm.xrt_world_size()) == (0, 0, 1)
    assert xm.is_master_ordinal(local=False) is True
    assert xm.mesh_reduce("accuracy", 3.0, max) == 3.0
    xm.master_print("epoch", 1)
    assert capsys.readouterr().out == "epoch 1\n"


def test_the_random_state_and_the_optimizer(torch: Any) -> None:
    xm = imported("torch_xla.core.xla_model")
    assert xm.get_rng_state() == 7
    xm.set_rng_state(11)
    assert xm.get_rng_state() == 11
    optimizer = SimpleNamespace(step=lambda closure=None: ("stepped", closure))
    assert xm.optimizer_step(optimizer) == ("stepped", None)
    assert xm.optimizer_step(optimizer, optimizer_args={"closure": 1}) == ("stepped", 1)


def test_what_it_does_not_have_says_so(torch: Any) -> None:
    xm = imported("torch_xla.core.xla_model")
    assert not hasattr(xm, "xla_replication_devices")
    with pytest.raises(NotInStandInError) as caught:
        print(imported("torch_neuronx").trace)
    hint = "the stand-in of nkilib.simulator has only what AWS's examples of kernels use; run this on a Neuron device"
    assert advice(caught.value) == f"torch_neuronx.trace: {hint}"
    with pytest.raises(ImportError) as of_a_name:
        exec("from torch_xla.core.xla_model import all_gather")
    assert advice(of_a_name.value) == f"cannot import name 'all_gather' from 'torch_xla.core.xla_model': {hint}"
    with pytest.raises(ModuleNotFoundError) as of_a_module:
        imported("torch_xla.runtime")
    assert advice(of_a_module.value) == f"No module named 'torch_xla.runtime': {hint}"
    with pytest.raises(ImportError) as of_an_old_name:
        exec("from torch_neuronx import nki_jit")
    assert advice(of_an_old_name.value) == "cannot import name 'nki_jit' from 'torch_neuronx': it is nki.jit now"


def test_jax_that_is_not_installed() -> None:
    message = "No module named 'jax': install jax, and give kernels numpy arrays: numpy.asarray(x)"
    assert advice(ModuleNotFoundError("No module named 'jax'", name="jax")) == message
    message = "No module named 'jax_neuronx': call the kernel of nki.jit itself, on numpy arrays: numpy.asarray(x)"
    assert advice(ModuleNotFoundError("No module named 'jax_neuronx'", name="jax_neuronx")) == message


def test_the_first_nki_of_which_the_simulator_has_a_name_alone() -> None:
    nki = aliases.COMPILER_MODULES["neuronxcc.nki"]
    with pytest.raises(AttributeError) as caught:
        nki.jit  # noqa: B018  # raises
    message = advice(caught.value)
    assert message is not None and message.startswith(
        "module 'neuronxcc.nki' has no attribute 'jit': this script is written"
    )


def test_other_errors_of_a_script_are_its_own() -> None:
    for error in (
        AttributeError("module 'x' has no attribute 'jit'"),
        ImportError("no"),
        ModuleNotFoundError("no pandas", name="pandas"),
        ValueError("torch_xla"),
    ):
        assert advice(error) is None


def test_without_torch_there_is_no_stand_in_and_the_advice_is_to_install_it(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(xla_stand_in, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as caught:
        imported("torch_xla")
    message = (
        "No module named 'torch_xla': with torch the simulator has a stand-in; install nkilib with its extra 'torch': "
        "pip install '.[torch]' in a checkout, or './nkilib-VERSION-py3-none-any.whl[torch]'"
    )
    assert advice(caught.value) == message


def test_a_device_before_torch_is_imported(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    xla = imported("torch_xla")
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(NotInStandInError, match="import torch before you ask for a device") as caught:
        xla.device()
    assert advice(caught.value) == str(caught.value)


def test_it_is_installed_once_and_behind_what_is_installed(torch: Any) -> None:
    before = list(sys.meta_path)
    install_stand_in()
    assert sys.meta_path == before
    assert type(before[-1]).__module__ == xla_stand_in.__name__
