# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib doctor``: show which NKI the kernels would run on here, and why; with ``--kernels``, what the
kernels guarantee.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from nkilib.base import lnc
from nkilib.base.installation import HOME, mixture, other_copies, visible_devices

from .arguments import fail, folded

# Imported by the name on the left, installed under the one on the right.
_PACKAGES = {
    "torch": "torch",
    "torch_neuronx": "torch-neuronx",
    "jax": "jax",
    "jax_neuronx": "jax-neuronx",
    "libneuronxla": "libneuronxla",
    "neuronxcc": "neuronx-cc",
}
_SYSFS = "sys/devices/virtual/neuron_device"
_VARIABLES = (
    "NKILIB_BACKEND",
    "NKILIB_TORCH_OPS",
    "NKILIB_FORCE_BUNDLED_LIBRARY",
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NKI_COMPILER_FRONTEND",
    "NKI_PRECISE_FP",
    "NKI_SIMULATOR",
    "NEURON_RT_VISIBLE_CORES",
    "NEURON_RT_NUM_CORES",
    lnc.VARIABLE,
    lnc.FLAGS,
    "NKILIB_RACES",
    "NKILIB_CAPACITY",
    "NKILIB_UNINITIALIZED",
    "NKILIB_IDENTICAL_WRITES",
    "NKILIB_PSUM_GROUPS",
    "NKILIB_OVERLAPPING_COPIES",
    "NKILIB_LOST_RESULTS",
    "NKILIB_STRICT",
    "NKILIB_REPLAY",
    "NKILIB_TRACEBACK",
)

_REPLAYED = {
    True: "replayed from the fifth launch on, of kernels that state that they are replayable; NKILIB_REPLAY=0 turns "
    "that off",
    "always": "replayed from the fifth launch on, also of kernels that read what changes, because NKILIB_REPLAY is "
    "always",
    False: "not replayed, because NKILIB_REPLAY is 0",
}


class Finding(NamedTuple):
    """One line of the doctor's report.

    Attributes:
        what: the subject of the line.
        found: the text about the subject.
        is_wrong: whether kernels cannot run because of this fact.
    """

    what: str
    found: str
    is_wrong: bool = False


def _print_guarantees() -> int:
    wrong = mixture()
    if wrong is not None:
        return fail("doctor", wrong)
    try:
        text = importlib.import_module("nkilib.cli.guarantees").as_text()  # loads the kernels, and NKI with them
    except (ImportError, ValueError) as error:  # ValueError: of NKILIB_BACKEND
        return fail("doctor", str(error))
    print(text)
    return 0


def _packages() -> Iterator[Finding]:
    """Yield a line for this nkilib, and one for each other package named nkilib, such as the Neuron compiler's."""
    wrong = mixture()
    if wrong is None:
        yield Finding("nkilib", f"{importlib.import_module('nkilib').__version__}, {HOME}")
    else:
        yield Finding("nkilib", f"cannot be used: {wrong}", is_wrong=True)
    for copy in other_copies():
        owners = f" (of {', '.join(copy.owners)})" if copy.owners else ""
        if wrong is not None:
            place = "mixed with this one"
        elif os.path.realpath(copy.directory) == os.path.realpath(HOME):
            place = (
                "in the same directory: removing one breaks the other. Uninstall both, then install that one, then "
                "nkilib again, which has a directory of its own"
            )
        else:
            place = "behind this one, which is imported; modules that only that one has stay importable"
        yield Finding("another nkilib", f"{copy.directory}{owners}, {place}")


def _backend() -> Iterator[Finding]:
    """Yield lines about the NKI that kernels run on, real or simulated, and about the simulator's target."""
    if mixture() is not None:
        yield Finding("nki", "cannot be used: see nkilib", is_wrong=True)
        return
    try:
        backend = importlib.import_module("nkilib.nki").backend
    except (ImportError, ValueError) as error:
        yield Finding("nki", f"cannot be used: {error}", is_wrong=True)
        return
    yield Finding("nki", f"{backend.name}, because {backend.reason}")
    if backend.name == "simulator":
        try:
            options = importlib.import_module("nkilib.simulator.hardware.options").current_options()
        except ValueError as error:
            yield Finding("simulated target", f"cannot be used: {error}", is_wrong=True)
        else:
            yield Finding("simulated target", options.generation.name)
            yield Finding("repeated launches", _REPLAYED[options.replay])


def _torch_operators() -> Iterator[Finding]:
    """Yield a line that says which of ``nki_op`` and ``torch.library`` registers the operators for the native device.

    Yield no line if torch-neuronx is not installed and the user has chosen neither of the two.
    """
    if "torch_neuronx" not in sys.modules and "NKILIB_TORCH_OPS" not in os.environ:  # _importable has tried
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the line repeats them
            importlib.import_module("nkilib.torch")
    except Exception as error:
        yield Finding("operators on neuron", f"cannot be used: {type(error).__name__}: {error}")  # kernels can
        return
    registrar = importlib.import_module("nkilib.torch.dispatch.devices").registrar
    yield Finding("operators on neuron", f"{registrar.name}, because {registrar.reason}")


def _cores_of_a_launch() -> Finding:
    try:
        return Finding("cores of a launch", lnc.explanation())
    except ValueError as error:
        return Finding("cores of a launch", f"cannot be launched: {error}", is_wrong=True)


def _devices(root: str = "/") -> Iterator[Finding]:
    yield Finding("Neuron devices", ", ".join(visible_devices(root)) or "none visible (/dev/neuron*)")
    # "Neuron Sysfs User Guide" of the Neuron SDK: a directory for each physical core.
    cores = glob.glob(f"{root}{_SYSFS}/neuron[0-9]*/neuron_core[0-9]*")
    text = f"{len(cores)} visible, of {len({os.path.dirname(core) for core in cores})} devices"
    yield Finding("NeuronCores", text if cores else f"none visible (/{_SYSFS})")


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _importable(module: str, distribution: str) -> str:
    """Return the version of an optional package as text, with the error if the package cannot be imported.

    Placeholder packages from the public index, for instance, cannot be imported.
    """
    version = _installed(distribution)
    if version == "not installed":
        return version
    try:
        importlib.import_module(module)
    except Exception as error:
        reason = str(error).strip().splitlines()
        return f"{version}, but it refuses to import: {type(error).__name__}: {reason[0] if reason else ''}"
    return version


def examine() -> Iterator[Finding]:
    """Yield the findings of the doctor, in the order of the report."""
    yield from _packages()
    yield Finding("python", f"{platform.python_version()}, {sys.executable}, {platform.platform()}")
    for name in ("numpy", "ml_dtypes"):
        yield Finding(name, _installed(name))
    yield from _backend()
    for module, distribution in _PACKAGES.items():
        yield Finding(distribution, _importable(module, distribution))
    yield from _torch_operators()
    yield from _devices()
    yield _cores_of_a_launch()
    for name in _VARIABLES:
        if name in os.environ:
            yield Finding(name, repr(os.environ[name]))


def main(options: argparse.Namespace) -> int:
    """Print the report; return exit code 0, or 1 if kernels cannot run here."""
    if options.kernels:
        return _print_guarantees()
    findings = list(examine())
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        print(folded(finding.found, f"{finding.what:<{width}}  "))
    return int(any(finding.is_wrong for finding in findings))


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``python -m nkilib doctor`` to the parser of this command."""
    command.add_argument(
        "--kernels",
        action="store_true",
        help="print the guarantees of each kernel instead: precision, bits, workspace, errors",
    )
    command.set_defaults(run=main)
