# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The stand-in for NKI 0.7 has the documented names only, and refuses what the real one cannot do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.neuron import machine
from tests.neuron.planted import CASES
from tests.simulator.api.documented import DOCUMENTED

SHOW_API = """
import inspect, json
import nki, nki.collectives, nki.compiler, nki.isa, nki.language

def written(parameter):
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    only = ["*"] if parameter.kind is parameter.KEYWORD_ONLY else []
    return only + [stars.get(parameter.kind, "") + parameter.name]

def shown(value):
    return [written(parameter) for parameter in inspect.signature(value).parameters.values()]

modules = {"nki": nki, "nki.collectives": nki.collectives, "nki.compiler": nki.compiler, "nki.isa": nki.isa,
           "nki.language": nki.language}
public = {name: [each for each in vars(module) if not each.startswith("_")] for name, module in modules.items()}
tensor = nki.language.NkiTensor
print(json.dumps({
    "version": nki.__version__,
    "public": public,
    "tensor": [name for name in dir(tensor) if name not in dir(object)],
    "signatures": {f"{module}.{name}": shown(getattr(modules[module], name)) for module, name in [
        ("nki", "jit"), ("nki.isa", "dma_copy"), ("nki.isa", "scalar_tensor_tensor"), ("nki.isa", "topk"),
        ("nki.language", "empty_like"), ("nki.language", "add"), ("nki.collectives", "rank_id"),
        ("nki.isa", "scalar_load")]},
    "enumerations": {name: [member.name for member in getattr(nki.isa, name)] for name in ("engine", "dependency")},
}))
"""
OPERATORS_OF_PYTHON = {"__bool__", "__contains__", "__float__", "__index__", "__int__", "__iter__", "__len__"}
OF_EVERY_CLASS = {
    "__annotations__",
    "__firstlineno__",
    "__module__",
    "__slots__",
    "__static_attributes__",
}  # two of them since Python 3.13


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    done = machine.run("-c", SHOW_API)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_its_names_are_the_documented_ones(api: dict[str, Any]) -> None:
    modules = {"collectives", "compiler", "isa", "language"}
    assert api["version"] == "0.7.0"
    for module, names in api["public"].items():
        of_nki = modules if module == "nki" else set()
        assert set(names) == {name for name in DOCUMENTED[module] if not name.startswith("_")} | of_nki


def test_names_of_0_7_are_there(api: dict[str, Any]) -> None:
    assert {"NkiScalar", "dependency", "scalar_load", "scalar_store"} <= set(api["public"]["nki.isa"])
    assert {"alloc_tiles", "blocks", "int64", "tiles"} <= set(api["public"]["nki.language"])
    assert "VirtualRegister" not in api["public"]["nki.language"]  # of nki.isa; the simulator imports it there too
    assert api["enumerations"]["dependency"] == ["runtime", "schedule"]
    assert set(api["enumerations"]["engine"]) == {"tensor", "vector", "scalar", "gpsimd", "dma", "sync", "unknown"}


def test_a_tensor_has_the_documented_attributes_and_methods_only(api: dict[str, Any]) -> None:
    documented = DOCUMENTED["nki.language"]["NkiTensor"]
    known = {*documented["attributes"], *documented["methods"]} - {"__init__"}
    public = {name for name in api["tensor"] if not name.startswith("_") or name.startswith("__")}
    assert public - OPERATORS_OF_PYTHON - OF_EVERY_CLASS == known


def test_signatures_are_those_of_0_7(api: dict[str, Any]) -> None:
    def names(*item: str) -> list[list[str]]:
        return [name.split() for name in item]

    assert api["signatures"] == {
        "nki.jit": names("fn", "* compile_config", "* specialization_config", "**kwargs"),
        "nki.isa.dma_copy": names("dst", "src", "priority", "oob_mode", "dge_mode", "engine", "name"),
        "nki.isa.scalar_tensor_tensor": names(
            *("dst", "data", "op0", "operand0", "op1", "operand1", "reverse0", "reverse1"),
            *("reduce_cmd", "reduce_op", "reduce_res", "name"),
        ),
        "nki.isa.topk": names("val_dst", "idx_dst", "src", "n", "sorted", "name"),
        "nki.language.empty_like": names("x", "dtype", "buffer", "name", "* transpose_axes", "* address"),
        "nki.language.add": names("x", "y", "dtype"),
        "nki.collectives.rank_id": names("name"),
        "nki.isa.scalar_load": names("src"),
    }


GRIDS_AND_CONFIGURATIONS = """
import numpy as np
import nki, nki.isa as nisa, nki.language as nl
from nki.compiler import AddressRotation, CompileConfig, SpecializationConfig

config = CompileConfig(address_rotation=AddressRotation.DISABLE)
assert config.address_rotation is AddressRotation.DISABLE and config.nki_alloc_fallback

@nki.jit(compile_config=config, specialization_config=SpecializationConfig(allow_nested_config_override=True))
def kernel(x):
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source, target = nl.tiles(x, tile_shape=(2, 4)), nl.blocks(result, tile_shape=(2, 4), block_shape=(1, 2))
    assert isinstance(source, nl.NkiTileGrid) and isinstance(source, nl.NkiGrid) and isinstance(target, nl.NkiBlockGrid)
    assert source.shape == (2, 3) and target.shape == (2, 2) and target.block_shape == (1, 2)
    assert source[1, -1].is_remainder and source[1, -1].element_shape == (1, 2)
    for row in range(source.shape[0]):
        held = nl.empty_like(source[row], buffer=nl.sbuf)
        nisa.dma_copy(dst=held.data, src=source[row].data)
        for column in range(target.shape[1]):
            block = target[row, column]
            nisa.dma_copy(dst=block.data, src=held[2 * column : 2 * column + nl.tiles(block).shape[1]].data)
    return result

@nki.jit
def caller(x):
    return kernel(x)

x = np.arange(30, dtype=np.float32).reshape(3, 10)
assert (kernel(x) == x).all()
try:
    caller(x)
except nisa.NkiValidationError as error:
    assert "kernel kernel asks for another CompileConfig" in str(error)
else:
    raise SystemExit("a kernel that disagrees was inlined")
assert (nki.jit(lambda x: kernel(x), compile_config=config)(x) == x).all()
"""


def test_grids_and_configurations_are_those_of_the_simulator() -> None:
    done = machine.run("-c", GRIDS_AND_CONFIGURATIONS)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str | None]]:
    """Return by case the errors that launching the kernel and its twin raise."""
    done = machine.run("-m", "tests.neuron.planted", tmp_path_factory.mktemp("planted"))
    assert done.returncode == 0, done.stderr
    printed: dict[str, list[str | None]] = json.loads(done.stdout)
    return printed


@pytest.mark.parametrize("name", CASES)
def test_a_planted_kernel_is_refused_and_its_twin_runs(name: str, outcomes: dict[str, list[str | None]]) -> None:
    refused, instead = outcomes[name]
    kind, message = CASES[name].error
    assert instead is None
    assert refused is not None and refused.startswith(f"{kind}: ") and message in refused, refused
