# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The classes that kernels get objects of. None lets its value steer Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nkilib.simulator.api import collectives, compiler, isa, language

from ._boundary import Held, _held, pair_class, to_kernel, to_simulator
from ._documented import API, bind, signature


class NKIObject:
    """Base of NKI classes; one of a kernel's own takes its fields by keyword."""

    def __init__(self, **kwargs: Any) -> None:
        for name, value in kwargs.items():
            setattr(self, name, value)


class _RunTimeValue(Held):
    """A value that is known on the device only: refused wherever Python would go by it."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} has its value on the device only and cannot steer Python: no if, while, int(), "
            "range(), index or loop goes by it; nl.fori_loop and nl.while_loop do"
        )

    __bool__ = __int__ = __index__ = __float__ = __iter__ = __len__ = __contains__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


class NkiTensor(_RunTimeValue):
    __slots__ = ()


class VirtualRegister(_RunTimeValue):
    __slots__ = ()

    __eq__ = __ne__ = _RunTimeValue._refuse  # type: ignore[assignment]
    __hash__ = object.__hash__


class NkiScalar(_RunTimeValue):
    """An integer of the device, which the device computes with."""

    __slots__ = ()
    __hash__ = object.__hash__


def _traced(name: str) -> Callable[..., Any]:
    def compute(self: Held, *others: Any) -> Any:
        return to_kernel(getattr(_held(self), name)(*map(to_simulator, others)))

    return compute


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "neg", "pos", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(NkiScalar, f"__{_name}__", _traced(f"__{_name}__"))


class NkiInstruction(Held):
    __slots__ = ()


class CompileConfig(Held):
    """How a kernel is compiled; the simulator checks the values."""

    __slots__ = ()

    def __new__(cls, **kwargs: Any) -> Any:
        return cls._hold(compiler.CompileConfig(**to_simulator(kwargs)))


class SpecializationConfig(Held):
    __slots__ = ()

    def __new__(cls, **kwargs: Any) -> Any:
        return cls._hold(compiler.SpecializationConfig(**to_simulator(kwargs)))


class NkiGrid(Held):
    """A view in tiles or blocks: its sizes are known while the kernel is built, and an index chooses some of them."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        return to_kernel(_held(self)[to_simulator(key)])


class NkiTileGrid(NkiGrid):
    __slots__ = ()


class NkiBlockGrid(NkiGrid):
    __slots__ = ()


class ReplicaGroup(collectives.ReplicaGroup):
    """The simulator's; the operator of a partition comes from this side."""

    @staticmethod
    def from_partition_op(world_size: int, op: Any, operand: int) -> collectives.ReplicaGroup:
        return collectives.ReplicaGroup.from_partition_op(world_size, to_simulator(op), operand)


def _method(cls: str, name: str, parameters: list[list[str]]) -> Callable[..., Any]:
    documented = signature(parameters[1:])
    what = f"{cls}.{name}"

    def method(self: Held, *args: Any, **kwargs: Any) -> Any:
        inputs = bind(what, documented, args, kwargs)
        producers = map(to_simulator, inputs.pop("producers", ()))
        keywords = {name: to_simulator(value) for name, value in inputs.items()}
        return to_kernel(getattr(_held(self), name)(*producers, **keywords))

    method.__name__, method.__qualname__ = name, what
    method.__signature__ = signature(parameters)  # type: ignore[attr-defined]
    return method


def _attribute(name: str) -> property:
    def read(self: Held) -> Any:
        try:
            return to_kernel(getattr(_held(self), name))
        except AttributeError:
            raise NotImplementedError(f"the simulator does not have {type(self).__name__}.{name}") from None

    return property(read)


def _fill(cls: type, module: str) -> None:
    """Give a class the documented attributes and methods."""
    documented = API[module][cls.__name__]
    for name in documented["attributes"]:
        setattr(cls, name, _attribute(name))
    for name, parameters in documented["methods"].items():
        if name != "__init__":
            setattr(cls, name, _method(cls.__name__, name, parameters))


_fill(NkiTensor, "nki.language")
_fill(NkiInstruction, "nki.isa")
_fill(NkiScalar, "nki.isa")
_fill(VirtualRegister, "nki.isa")
_fill(CompileConfig, "nki.compiler")
_fill(SpecializationConfig, "nki.compiler")
for _grid in (NkiGrid, NkiTileGrid, NkiBlockGrid):
    _fill(_grid, "nki.language")
pair_class(language.NkiTensor, NkiTensor)
pair_class(isa.NkiScalar, NkiScalar)
pair_class(isa.VirtualRegister, VirtualRegister)
pair_class(isa.NkiInstruction, NkiInstruction)
pair_class(language.NkiTileGrid, NkiTileGrid)
pair_class(language.NkiBlockGrid, NkiBlockGrid)
