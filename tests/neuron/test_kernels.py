# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every public kernel runs on NKI 0.7 as it is documented, with the simulator's bits: it reaches nothing else."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nkilib.core
import nkilib.experimental
from nkilib.nki import nki
from tests.neuron import machine
from tests.neuron.launches import TYPES, Launch, launches, matrix_of
from tests.selected import selected, write_names

LAUNCHES = launches()
KERNEL: Any = type(nki.jit(lambda tensor: tensor))

Results = dict[str, list[tuple[str, tuple[int, ...], bytes]]]


@pytest.fixture(scope="module")
def on_both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """The results of all launches that are asked for, in a process of their own, by backend."""
    results = {}
    names = write_names(tmp_path_factory.mktemp("names"), selected(request, "name"))
    for backend in ("simulator", "neuron"):
        file = tmp_path_factory.mktemp(backend) / "results"
        done = machine.run("-m", "tests.neuron.launches", file, names, backend=backend)
        assert done.returncode == 0, done.stderr
        results[backend] = pickle.loads(file.read_bytes())
    return results


@pytest.mark.parametrize("name", LAUNCHES)
def test_results_are_those_of_the_simulator_bit_for_bit(name: str, on_both: dict[str, Results]) -> None:
    results = on_both["neuron"][name]
    assert results == on_both["simulator"][name]
    assert len(results) > len([value for value in LAUNCHES[name].arguments.values() if isinstance(value, np.ndarray)])


def _modules() -> Iterator[Any]:
    for package in (nkilib.core, nkilib.experimental):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(module.name)


def _public_kernels() -> dict[str, Any]:
    """All kernels that modules of nkilib have under a public name, by module and name of the function."""
    results = [
        value
        for module in _modules()
        for name, value in vars(module).items()
        if isinstance(value, KERNEL) and not name.startswith("_")
    ]
    return {f"{kernel.__module__}.{kernel.__name__}": kernel for kernel in results}


@pytest.mark.parametrize("kernel", _public_kernels().values(), ids=_public_kernels())
def test_every_public_kernel_is_launched_with_every_option(kernel: Any) -> None:
    function = inspect.unwrap(kernel.func)
    own = [launch for launch in LAUNCHES.values() if inspect.unwrap(launch.kernel.func) is function]
    for parameter in inspect.signature(function).parameters.values():
        assert any(_sets(launch, parameter) for launch in own), f"no launch gives {parameter.name} another value"
    arguments = {(launch.cores, matrix_of(launch.arguments).dtype) for launch in own}
    assert arguments >= {(cores, np.dtype(numpy_type)) for cores in (1, 2) for numpy_type, _ in TYPES.values()}


def _sets(launch: Launch, parameter: inspect.Parameter) -> bool:
    arguments = launch.arguments.get(parameter.name, parameter.default)
    return isinstance(arguments, np.ndarray) or arguments != parameter.default


def test_there_are_kernels_to_launch() -> None:
    assert len(_public_kernels()) >= 4


# Parts of the positions on NKI 0.7 as it is documented, with the simulator's bits.


def test_parts_have_the_simulators_bits(tmp_path: Path) -> None:
    results = []
    for backend in ("simulator", "neuron"):
        file = tmp_path / backend
        done = machine.run("-m", "tests.neuron.position_parts", file, backend=backend)
        assert done.returncode == 0, done.stderr
        results.append(pickle.loads(file.read_bytes()))
    assert len(results[0]) == 40
    assert results[0] == results[1]
