# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The stand-in for ``torch_xla`` with which ``python -m nkilib.simulator`` runs AWS's example scripts.

Whole scripts of AWS's were run from outside this repository; here is one of their form, and every name by itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nkilib.simulator import xla_stand_in
from nkilib.simulator.api import aliases
from nkilib.simulator.xla_stand_in import NotInStandInError, advice, install_stand_in

from .test_install import command

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
