# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A stand-in for ``torch_xla``, so that AWS's example scripts run on the simulator unmodified.

``python -m nkilib.simulator`` installs it (:func:`install_stand_in`), and prints :func:`advice` if a script fails
because a package or name is missing. The scripts ask for a device, move tensors to the device and mark steps. Here the
device is the CPU, and every operation has run when it returns, so that marking a step does nothing. Functions that make
sense only on a Neuron device are absent; using one raises an error that says so.

This module does not import torch: the simulator does not need torch, and a script that uses tensors imports it. An
installed ``torch_xla`` takes precedence over the stand-in.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

from nkilib.base.installation import extra_remedy

from .terms.other_names import FIRST_NKI

_HINT = "the stand-in of nkilib.simulator has only what AWS's examples of kernels use; run this on a Neuron device"

# What to do where a script imports something that is not there, by its name or the beginning of it.
_ADVICE = {
    "torch_xla": f"with torch the simulator has a stand-in; {extra_remedy('torch')}",
    "torch_neuronx": f"with torch the simulator has a stand-in; {extra_remedy('torch')}",
    "torch": extra_remedy("torch"),
    "jax": "install jax, and give kernels numpy arrays: numpy.asarray(x)",
    "jax_neuronx": "call the kernel of nki.jit itself, on numpy arrays: numpy.asarray(x)",
    "libneuronxla": "it is of the Neuron device alone; run this there",
    "neuronxcc": FIRST_NKI,
}

# The same for what torch_neuronx had.
_RENAMED = {"nki_jit": "it is nki.jit now", "nki_call": "call the kernel of nki.jit itself"}


class NotInStandInError(AttributeError):
    """Raised if a script uses a name that the stand-in lacks, or asks for a device before it imports torch."""


def _has_torch() -> bool:
    return "torch" in sys.modules or find_spec("torch") is not None


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise NotInStandInError(
            "torch_xla (the stand-in of nkilib.simulator): import torch before you ask for a device"
        )
    return torch


def _device(*_: Any, **__: Any) -> Any:
    # Arguments that choose one of several devices are ignored.
    return _torch().device("cpu")


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, in place of a function that marks a step or synchronizes: every operation has run when it returns."""


@contextmanager
def _step() -> Iterator[None]:
    yield


def _optimizer_step(optimizer: Any, *_: Any, optimizer_args: dict[str, Any] | None = None, **__: Any) -> Any:
    return optimizer.step(**(optimizer_args or {}))


def _mesh_reduce(_tag: str, data: Any, reduce_fn: Callable[[Sequence[Any]], Any]) -> Any:
    return reduce_fn([data])


_MODEL = {
    "get_local_ordinal": lambda *_: 0,
    "get_ordinal": lambda *_: 0,
    "get_rng_state": lambda *_: _torch().initial_seed(),
    "is_master_ordinal": lambda *_, **__: True,
    "mark_step": _nothing,
    "master_print": print,
    "mesh_reduce": _mesh_reduce,
    "optimizer_step": _optimizer_step,
    "rendezvous": _nothing,
    "set_rng_state": lambda seed, *_: _nothing(_torch().manual_seed(seed)),
    "wait_device_ops": _nothing,
    "xla_device": _device,
    "xrt_world_size": lambda *_: 1,
}
# Modules by name. There is no torch_xla.runtime: accelerate takes its absence for that of all of torch_xla, rightly.
_MODULES: dict[str, dict[str, Any]] = {
    "torch_xla": {"device": _device, "manual_seed": _MODEL["set_rng_state"], "step": _step, "sync": _nothing},
    "torch_xla.core": {},
    "torch_xla.core.xla_model": _MODEL,
    "torch_neuronx": {},
}


class _StandIn(MetaPathFinder, Loader):
    """The import finder and loader of the modules in ``_MODULES``; Python asks it after all other finders."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _MODULES or not _has_torch():
            return None
        return spec_from_loader(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name, f"Stands for ``{spec.name}`` in scripts that run on the simulator.")

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise NotInStandInError(f"{spec.name}.{name}: {_HINT}")

        setattr(module, "__getattr__", missing)  # noqa: B010  # a module's own, which no type checker knows
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_MODULES[module.__name__])


def install_stand_in() -> None:
    """Make ``import torch_xla`` and ``import torch_neuronx`` import the stand-in if the package is not installed."""
    if not any(isinstance(finder, _StandIn) for finder in sys.meta_path):
        sys.meta_path.append(_StandIn())


def advice(error: BaseException) -> str | None:
    """Return one line of advice about an error that ended a script, such as a missing package; None if there is no
    advice.
    """
    if isinstance(error, NotInStandInError):
        return str(error)
    if isinstance(error, AttributeError) and getattr(error.obj, "__name__", None) == "neuronxcc.nki":
        # Importing it works, for a name of it that kernels use beside nki.
        return str(error).replace("; ", ": ", 1)
    if not isinstance(error, ImportError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    if FIRST_NKI in error.msg:
        return error.msg.replace("; ", ": ", 1)
    problem = re.split(r"; | \(", error.msg)[0]  # the part that Python adds is about packages and files
    for name, instead in _RENAMED.items():
        if f"'{name}'" in problem:
            return f"{problem}: {instead}"
    if package in ("torch_xla", "torch_neuronx") and _has_torch():
        return f"{problem}: {_HINT}"
    return f"{problem}: {_ADVICE[package]}" if package in _ADVICE else None
