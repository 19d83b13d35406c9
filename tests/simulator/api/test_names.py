"""Every public name of NKI 0.6 exists, with the documented parameters, or says by name that it is missing.

The documented names are data, ``documented_api.json`` (written by ``read_documentation.py``).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator.isa.operators import Operator
from nkilib.simulator.target.tile_size import TileSize
from nkilib.simulator.terms.dtypes import DType
from nkilib.simulator.terms.regions import MemoryRegion

DOCUMENTED: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "documented_api.json").read_text()
)
MODULES: dict[str, ModuleType] = {
    "nki": nki,
    "nki.isa": nisa,
    "nki.language": nl,
    "nki.collectives": nki.collectives,
}

# Classes that a constant or attribute of the documentation is an instance of.
TYPES: dict[str | None, type] = {
    "DType": DType,
    "MemoryRegion": MemoryRegion,
    "engine": nisa.engine,
    "_TileSize": TileSize,
    None: object,
}

# Documented with **kwargs only; the language guide also gives the fields in order, as C(1).
OTHER_PARAMETERS = {("NKIObject", "__init__"): [["self"], ["*args"], ["**kwargs"]]}

# All that the simulator does not do; each raises NotImplementedError with its name.
NOT_IMPLEMENTED = {
    "nki": set(),
    "nki.isa": set(),
    "nki.language": {"average", "bypass", "prelu"},  # operators for instructions, without documented parameters
    "nki.collectives": DOCUMENTED["nki.collectives"].keys(),  # they need several devices
    "NkiTensor": set(),
}


def names(kind: str) -> list[Any]:
    """``(module, name)`` of everything that the documentation describes by ``kind``, as parameters of a test."""
    found = [(module, name) for module, api in DOCUMENTED.items() for name, what in api.items() if kind in what]
    return [pytest.param(module, name, id=f"{module}.{name}") for module, name in found]


def written_default(value: Any) -> str:
    """A default as the documentation writes it."""
    if isinstance(value, MemoryRegion):
        return value.name
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Operator):
        return value.__name__
    return str(value) if isinstance(value, DType) else repr(value)


def parameters_of(function: Callable[..., Any], documented: Sequence[list[str]] = ()) -> list[list[str]]:
    """Parameters of a function in the form of the data file.

    Where the documentation leaves a default out, as `...`, so does this.
    """
    left_out = [name for name, *default in documented if default == ["..."]]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = []
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, *stars)
        has_default = parameter.default is not inspect.Parameter.empty
        written = "..." if parameter.name in left_out else written_default(parameter.default)
        default = [written] if has_default else []
        found.append([stars.get(parameter.kind, "") + parameter.name, *default])
    return found


def missing_message(function: Callable[..., Any], *arguments: Any) -> str | None:
    """What a function says of itself if it is not implemented, else None."""
    try:
        function(*arguments)
    except NotImplementedError as error:
        return str(error)
    except Exception:
        return None
    return None


def is_implemented(module: str, name: str) -> bool:
    return missing_message(getattr(MODULES[module], name)) is None


@pytest.mark.parametrize(("module", "name"), names("parameters"))
def test_a_function_has_the_documented_parameters_or_names_itself_as_missing(module: str, name: str) -> None:
    function = getattr(MODULES[module], name)
    documented = DOCUMENTED[module][name]["parameters"]
    message = missing_message(function)
    if message is None:
        assert parameters_of(function, documented) == documented
    else:
        assert message.startswith(f"{module}.{name} ") and "not implemented in the simulator yet" in message
        # With any arguments, as a kernel would call it.
        keywords = {parameter: 0 for parameter, *_ in documented}
        with pytest.raises(NotImplementedError) as caught:
            function(**keywords)
        assert str(caught.value) == message
        assert function.__name__ == name


@pytest.mark.parametrize(("module", "name"), names("type"))
def test_a_constant_exists_and_has_its_type(module: str, name: str) -> None:
    value = getattr(MODULES[module], name)
    kind = DOCUMENTED[module][name]["type"]
    if name == "DType":
        assert issubclass(value, str)
        return
    assert isinstance(value, TYPES[kind])
    if kind == "DType":
        assert value == name.removesuffix("_")
    elif kind == "MemoryRegion":
        assert value.name == {"hbm": "private_hbm"}.get(name, name)
    elif kind == "engine":
        assert value.name == name.removesuffix("_engine")


@pytest.mark.parametrize("name", [name for name, what in DOCUMENTED["nki.language"].items() if what == {"type": None}])
def test_an_operator_without_documented_parameters_names_itself_as_missing(name: str) -> None:
    if name != "DType":
        message = missing_message(getattr(nl, name))
        assert message is not None and message.startswith(f"nki.language.{name} ")


@pytest.mark.parametrize(("module", "name"), names("members"))
def test_an_enumeration_has_the_documented_members(module: str, name: str) -> None:
    enumeration = getattr(MODULES[module], name)
    assert {member.name: member.value for member in enumeration} == DOCUMENTED[module][name]["members"]


METHODS = [
    pytest.param(module, name, method, id=f"{name}.{method}")
    for module, api in DOCUMENTED.items()
    for name, what in api.items()
    for method in what.get("methods", ())
]


@pytest.mark.parametrize(("module", "name", "method"), METHODS)
def test_a_method_has_the_documented_parameters(module: str, name: str, method: str) -> None:
    documented = DOCUMENTED[module][name]["methods"][method]
    function = getattr(getattr(MODULES[module], name), method)
    assert parameters_of(function) == OTHER_PARAMETERS.get((name, method), documented)


ATTRIBUTES = [
    pytest.param(api, attribute, id=f"{name}.{attribute}")
    for name, api in (("NkiTensor", "NkiTensor"), ("tile_size", "_TileSize"))
    for attribute in DOCUMENTED["nki.language"][api]["attributes"]
]


@pytest.mark.parametrize(("name", "attribute"), ATTRIBUTES)
def test_an_attribute_exists(name: str, attribute: str) -> None:
    if name == "_TileSize":
        assert isinstance(getattr(nl.tile_size, attribute), int)
    else:
        assert hasattr(nl.NkiTensor((2, 3), nl.float32, None), attribute)


def test_classes_are_the_documented_ones() -> None:
    assert issubclass(nl.NkiTensor, nl.NKIObject)
    assert issubclass(nisa.NkiInstruction, nl.NKIObject)
    assert issubclass(nisa.NkiValidationError, Exception)
    assert issubclass(nisa.VirtualRegister, nl.NKIObject)


def test_collectives_are_all_missing_and_say_so() -> None:
    assert nki.collectives.__name__.endswith(".collectives") and len(DOCUMENTED["nki.collectives"]) == 12
    for name in DOCUMENTED["nki.collectives"]:
        message = f"nki.collectives.{name} is not implemented in the simulator yet"
        assert missing_message(getattr(nki.collectives, name)) == message


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_export_the_documented_names_and_no_others(module: str) -> None:
    own = {"nki": {"DType", "Kernel", "collectives", "isa", "language"}}.get(module, set())
    private = {"_TileSize"}
    assert set(MODULES[module].__all__) == (DOCUMENTED[module].keys() - private) | own


@pytest.mark.parametrize("module", MODULES)
def test_nothing_else_is_missing(module: str) -> None:
    functions = [name for name, what in DOCUMENTED[module].items() if what.keys() & {"parameters", "type"}]
    callables = [name for name in functions if callable(getattr(MODULES[module], name)) and name != "DType"]
    missing = {name for name in callables if not is_implemented(module, name)}
    assert missing == NOT_IMPLEMENTED[module] - {"ReplicaGroup"}


def missing_methods() -> set[str]:
    """Documented methods of NkiTensor that are not implemented."""
    tensor = nl.NkiTensor((2, 3), nl.float32, None)
    methods = DOCUMENTED["nki.language"]["NkiTensor"]["methods"]
    arguments = {name: [None] * (len(parameters) - 1) for name, parameters in methods.items()}
    return {name for name in methods if missing_message(getattr(tensor, name), *arguments[name]) is not None}


def test_no_other_method_of_a_tensor_is_missing() -> None:
    assert missing_methods() == NOT_IMPLEMENTED["NkiTensor"]


def test_operators_are_known_to_instructions() -> None:
    """The functions of nki.language that the tables of operators and activations name can be given as op=."""
    from nkilib.simulator.isa.operators import OPERATORS

    assert all(getattr(nl, name) is operator for name, operator in OPERATORS.items())
    assert OPERATORS.keys() <= DOCUMENTED["nki.language"].keys()


def test_how_much_of_the_documentation_is_implemented(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for module, api in DOCUMENTED.items():
        functions = [name for name, what in api.items() if "parameters" in what]
        done = [name for name in functions if is_implemented(module, name)]
        operators = [name for name in functions if isinstance(getattr(MODULES[module], name), Operator)]
        as_operators = f", {len(operators)} of them as op= of instructions too" if operators else ""
        lines.append(f"{module}: {len(done)} of {len(functions)} documented functions{as_operators}")
    methods = DOCUMENTED["nki.language"]["NkiTensor"]["methods"]
    lines.append(f"NkiTensor: {len(methods) - len(missing_methods())} of {len(methods)} documented methods")
    assert len(lines) == len(DOCUMENTED) + 1
    with capsys.disabled():
        print("\nImplemented in the simulator:", *lines, sep="\n  ")
