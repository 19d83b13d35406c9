# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every public name of NKI exists, with the documented parameters; a wrong call says where the kernel made it.

The documented names are data (``documented.py``): a name is checked against what could be read of NKI 0.7, or, if
nothing could, against 0.6 only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ArgumentTypeError, NkiValidationError
from nkilib.simulator.hardware.current import TileSize
from nkilib.simulator.isa.operators import Operator
from nkilib.simulator.terms.dtypes import DType
from nkilib.simulator.terms.enums import MemoryRegion
from tests.simulator.api.documented import DOCUMENTED, read_of_0_7
from tests.simulator.kernels import tile

MODULES: dict[str, ModuleType] = {
    "nki": nki,
    "nki.isa": nisa,
    "nki.language": nl,
    "nki.collectives": nki.collectives,
    "nki.compiler": nki.compiler,
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
NOT_IMPLEMENTED: dict[str, set[str]] = {
    "nki.language": {"average", "bypass", "prelu"},  # operators for instructions, without documented parameters
}


@dataclass(frozen=True)
class Name:
    """A documented name: of a module, or of a class in it.

    Attributes:
        module: the name of the module.
        name: the name in the module.
        member: a method or attribute, if the name is a class.
    """

    module: str
    name: str
    member: str | None = None

    def __str__(self) -> str:
        return ".".join(filter(None, (self.module, self.name, self.member)))

    @property
    def facts(self) -> dict[str, Any]:
        """The documented facts of the name, or of its class."""
        return DOCUMENTED[self.module][self.name]

    def get(self) -> Any:
        """The object itself, or its class."""
        return getattr(MODULES[self.module], self.name)


def documented(kind: str) -> Iterator[Name]:
    """Everything that the documentation describes by ``kind``."""
    for module, api in DOCUMENTED.items():
        yield from (Name(module, name) for name, what in api.items() if kind in what)


def members(kind: str) -> Iterator[Name]:
    """The ``methods`` or ``attributes`` of all documented classes."""
    for owner in documented(kind):
        yield from (Name(owner.module, owner.name, member) for member in owner.facts[kind])


def parameters(names: Iterator[Name]) -> list[Any]:
    """Names as parameters of a test."""
    return [pytest.param(name, id=str(name)) for name in names]


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
    results: list[list[str]] = []
    has_star = False
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not has_star:
            results.append(["*"])
        has_star |= parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        has_default = parameter.default is not inspect.Parameter.empty
        written = "..." if parameter.name in left_out else written_default(parameter.default)
        default = [written] if has_default else []
        results.append([stars.get(parameter.kind, "") + parameter.name, *default])
    return results


def missing_message(function: Callable[..., Any], *arguments: Any) -> str | None:
    """Return a function's message about itself if it is not implemented, else None."""
    try:
        function(*arguments)
    except NotImplementedError as error:
        return str(error)
    except Exception:
        return None
    return None


def is_implemented(module: str, name: str) -> bool:
    return missing_message(getattr(MODULES[module], name)) is None


@pytest.mark.parametrize("name", parameters(documented("parameters")))
def test_a_function_has_the_documented_parameters_or_names_itself_as_missing(name: Name) -> None:
    function, parameters = name.get(), name.facts["parameters"]
    message = missing_message(function)
    if message is None:
        assert parameters_of(function, parameters) == parameters
    else:
        assert message.startswith(f"{name} ") and "not implemented in the simulator yet" in message
        # With any arguments, as a kernel would call it.
        keywords = {parameter: 0 for parameter, *_ in parameters}
        with pytest.raises(NotImplementedError) as caught:
            function(**keywords)
        assert str(caught.value) == message
        assert function.__name__ == name.name


@pytest.mark.parametrize("name", parameters(documented("type")))
def test_a_constant_exists_and_has_its_type(name: Name) -> None:
    value, kind = name.get(), name.facts["type"]
    if name.name == "DType":
        assert issubclass(value, str)
        return
    assert isinstance(value, TYPES[kind])
    if kind == "DType":
        assert value == name.name.removesuffix("_")
    elif kind == "MemoryRegion":
        assert isinstance(value, Enum) and value.name == {"hbm": "private_hbm"}.get(name.name, name.name)
    elif kind == "engine":
        assert isinstance(value, Enum) and value.name == name.name.removesuffix("_engine")


@pytest.mark.parametrize("name", [name for name, what in DOCUMENTED["nki.language"].items() if what == {"type": None}])
def test_an_operator_without_documented_parameters_names_itself_as_missing(name: str) -> None:
    if name != "DType":
        message = missing_message(getattr(nl, name))
        assert message is not None and message.startswith(f"nki.language.{name} ")


@pytest.mark.parametrize("name", parameters(documented("members")))
def test_an_enumeration_has_the_documented_members(name: Name) -> None:
    assert {member.name: member.value for member in name.get()} == name.facts["members"]


@pytest.mark.parametrize("name", parameters(members("methods")))
def test_a_method_has_the_documented_parameters(name: Name) -> None:
    assert name.member is not None
    expected = OTHER_PARAMETERS.get((name.name, name.member), name.facts["methods"][name.member])
    assert parameters_of(getattr(name.get(), name.member)) == expected


def says_removed(name: Name) -> bool:
    """Whether a call is refused with what took the name's place."""
    try:
        name.get()(1)
    except Exception as error:
        return "fori_loop" in str(error)
    return False


@pytest.mark.parametrize("name", parameters(documented("removed")))
def test_what_was_removed_says_what_took_its_place(name: Name) -> None:
    assert says_removed(name)


def has_attribute(cls: type, attribute: str) -> bool:
    """Whether instances of a class have an attribute: its own, or one of a dataclass."""
    return hasattr(cls, attribute) or any(attribute in vars(base).get("__annotations__", ()) for base in cls.__mro__)


@pytest.mark.parametrize("name", parameters(members("attributes")))
def test_an_attribute_exists(name: Name) -> None:
    assert name.member is not None
    if name.name == "_TileSize":
        assert isinstance(getattr(nl.tile_size, name.member), int)
    elif name.name == "NkiTensor":
        assert hasattr(nl.NkiTensor((2, 3), nl.float32, None), name.member)
    else:
        assert has_attribute(name.get(), name.member)


def test_classes_are_the_documented_ones() -> None:
    assert issubclass(nl.NkiTensor, nl.NKIObject)
    assert issubclass(nisa.NkiInstruction, nl.NKIObject)
    assert issubclass(nisa.NkiValidationError, Exception)
    assert issubclass(nisa.VirtualRegister, nl.NKIObject)


def test_the_one_collective_that_no_page_describes_says_so() -> None:
    message = "nki.collectives.reduce_scatter_v is not implemented in the simulator yet"
    assert missing_message(nki.collectives.reduce_scatter_v) == message


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_export_the_documented_names_and_no_others(module: str) -> None:
    own = {"nki": {"DType", "Kernel", "collectives", "compiler", "isa", "language"}}.get(module, set())
    private = {"_TileSize"}
    absent = {name for name in DOCUMENTED[module] if not hasattr(MODULES[module], name)}
    assert absent <= private
    assert set(getattr(MODULES[module], "__all__", ())) == (DOCUMENTED[module].keys() - private) | own


@pytest.mark.parametrize("module", MODULES)
def test_nothing_else_is_missing(module: str) -> None:
    functions = [name for name in DOCUMENTED[module] if DOCUMENTED[module][name].keys() & {"parameters", "type"}]
    there = [name for name in functions if hasattr(MODULES[module], name) and name != "DType"]
    callables = [name for name in there if callable(getattr(MODULES[module], name))]
    missing = {name for name in callables if not is_implemented(module, name)}
    assert missing == NOT_IMPLEMENTED.get(module, set())


def missing_methods() -> set[str]:
    """Documented methods of NkiTensor that are not implemented."""
    tensor = nl.NkiTensor((2, 3), nl.float32, None)
    methods = DOCUMENTED["nki.language"]["NkiTensor"]["methods"]
    arguments = {name: [None] * (len(parameters) - 1) for name, parameters in methods.items()}
    return {name for name in methods if missing_message(getattr(tensor, name), *arguments[name]) is not None}


def test_no_method_of_a_tensor_is_missing() -> None:
    assert missing_methods() == set()


def test_operators_are_known_to_instructions() -> None:
    """The functions of nki.language that the tables of operators and activations name can be given as op=."""
    from nkilib.simulator.isa.operators import OPERATORS

    assert all(getattr(nl, name) is operator for name, operator in OPERATORS.items())
    assert OPERATORS.keys() <= DOCUMENTED["nki.language"].keys()


def test_how_much_of_the_documentation_is_implemented(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for module, api in DOCUMENTED.items():
        functions = [name for name, what in api.items() if "parameters" in what]
        there = [name for name in functions if hasattr(MODULES[module], name)]
        done = [name for name in there if is_implemented(module, name)]
        operators = [name for name in there if isinstance(getattr(MODULES[module], name), Operator)]
        as_operators = f", {len(operators)} of them as op= of instructions too" if operators else ""
        kept = sum(read_of_0_7(module, name) is not None for name in api)
        lines.append(
            f"{module}: {len(done)} of {len(functions)} documented functions{as_operators}; {kept} of all {len(api)} "
            f"names checked against 0.7, the others against 0.6 only"
        )
    methods = DOCUMENTED["nki.language"]["NkiTensor"]["methods"]
    lines.append(f"NkiTensor: {len(methods) - len(missing_methods())} of {len(methods)} documented methods")
    assert len(lines) == len(DOCUMENTED) + 1
    with capsys.disabled():
        print("\nImplemented in the simulator:", *lines, sep="\n  ")


# A wrong call of any function or method of NKI is an NkiValidationError with the line of the kernel.

# What no parameter of NKI accepts.
WRONG = {"float64": np.float64, "array": np.zeros(3), "text": "float31"}
VALUES = {"op": nl.add, "op0": nl.add, "op1": nl.add, "reduce_op": nl.add, "shape": (4, 8), "dtype": nl.float32}
TENSORS = ("dst", "data", "src", "x", "y", "stationary", "moving", "predicate", "on_")


class Wrong(NamedTuple):
    """A wrong call: its description, and a function that makes it inside a kernel."""

    what: str
    call: Callable[[], Any]


def value_of(parameter: inspect.Parameter) -> Any:
    """Return a value that a parameter without a default may well have."""
    return tile(4, 8) if parameter.name.startswith(TENSORS) else VALUES.get(parameter.name, 1)


def wrong_calls(name: str, make: Callable[[], Callable[..., Any]], function: Callable[..., Any]) -> Iterator[Wrong]:
    """Yield calls of what `make()` returns inside a kernel: with no, an unknown or a wrong argument."""
    parameters = [
        item
        for item in inspect.signature(function).parameters.values()
        if item.name != "self" and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    ]
    yield Wrong(f"{name}(unknown=1)", lambda: make()(unknown=1))
    yield Wrong(f"{name}(*range(40))", lambda: make()(*range(40)))
    if any(item.default is item.empty for item in parameters):
        yield Wrong(f"{name}()", lambda: make()())
    for parameter in parameters:
        for kind, value in WRONG.items():
            required = [item for item in parameters if item.default is item.empty and item is not parameter]

            def call(parameter: Any = parameter, value: Any = value, required: Any = required) -> None:
                make()(**{item.name: value_of(item) for item in required}, **{parameter.name: value})

            yield Wrong(f"{name}({parameter.name}={kind})", call)


def functions(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions that a module of NKI offers."""
    for name in module.__all__:
        item = getattr(module, name)
        if callable(item) and not inspect.isclass(item) and name != "device_print":
            yield name, item


def error_of(call: Callable[[], Any]) -> BaseException | None:
    """Return what a kernel that makes the call raises, or None."""

    def kernel() -> None:
        call()

    try:
        nki.jit(kernel)()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("module", [nisa, nl, nki.collectives], ids=["nki.isa", "nki.language", "nki.collectives"])
def test_every_function(module: Any) -> None:
    refused, wrong = 0, []
    with nkilib.simulator.using(replay=False):
        for name, function in functions(module):
            for what, call in wrong_calls(name, lambda function=function: function, function):
                error = error_of(call)
                refused += isinstance(error, ArgumentTypeError)
                is_right = isinstance(error, NkiValidationError) and str(error).startswith(f"{__file__}:")
                if not is_right and error is not None and not isinstance(error, NotImplementedError):
                    wrong.append((what, repr(error)))
    assert wrong == []
    assert refused > 30


def test_every_method_of_a_tensor() -> None:
    refused, wrong = 0, []
    with nkilib.simulator.using(replay=False):
        for name in DOCUMENTED["nki.language"]["NkiTensor"]["methods"]:
            for what, call in wrong_calls(
                name, lambda name=name: getattr(tile(4, 8), name), getattr(nl.NkiTensor, name)
            ):
                error = error_of(call)
                refused += isinstance(error, ArgumentTypeError)
                if error is not None and not str(error).startswith(f"{__file__}:"):
                    wrong.append((what, repr(error)))
    assert wrong == []
    assert refused > 30


def test_a_misspelt_argument_of_a_method_is_answered_with_the_nearest_one() -> None:
    error = error_of(lambda: tile(4, 8).slice(dim=0, start=0, stop=2))
    assert str(error).endswith("NkiTensor.slice: got an unexpected keyword argument 'stop'; did you mean 'step'?")


def test_a_function_of_the_kernel_with_the_same_name_is_its_own() -> None:
    names: dict[str, Any] = {}
    exec("def ds():\n    pass\ndef kernel():\n    ds(1)\n", names)
    assert type(error_of(names["kernel"])) is TypeError
