# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How an operator is described: once, as data. Everything else about it follows, in the other modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import ascii_lowercase
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.core.host.options import Dataclass, Group, Option, options_of, taken, values_of
from nkilib.nki import nl
from nkilib.torch.dispatch.native import NATIVE_NAMESPACE, registrar

NAMESPACE: Final = "nkilib"
# What kernels take as their first input; tiles have its type.
TILE_DTYPES: Final = {torch.bfloat16: nl.bfloat16, torch.float16: nl.float16, torch.float32: nl.float32}


@dataclass(frozen=True)
class Call:
    """The arguments of one call of an operator.

    Attributes:
        tensors: the inputs by name, the first one first; None for an optional one that is not given.
        options: every option by name.
    """

    tensors: Mapping[str, Tensor | None]
    options: Mapping[str, Any]

    def tensor(self, name: str) -> Tensor:
        """An input that is not optional.

        Raises:
            KeyError: it is optional, and was not given.
        """
        tensor = self.tensors[name]
        if tensor is None:
            raise KeyError(f"{name} is optional: look it up in tensors")
        return tensor

    @property
    def first(self) -> Tensor:
        """The input that chooses the device, and the type of the tiles."""
        return self.tensor(next(iter(self.tensors)))

    def group(self, kind: type[Group]) -> Group:
        """The options that are fields of a dataclass, as an instance of it."""
        return taken(kind, self.options)

    def replaced(self, tensors: Mapping[str, Tensor | None], **options: Any) -> Call:
        """With other or further tensors and options."""
        return Call({**self.tensors, **tensors}, {**self.options, **options})


Shape = tuple[int, ...]


def per_row(call: Call) -> Shape:
    """The shape of a result of one number for each row of the first input."""
    return (call.first.shape[0],)


def as_first(call: Call) -> Shape:
    """The shape of the first input."""
    return tuple(call.first.shape)


@dataclass(frozen=True)
class Input:
    """A tensor that an operator takes.

    Attributes:
        name: of the argument.
        keyword: of the kernel's argument; None for ``<name>_hbm``.
        is_optional: it may be None.
        dimensions: how many it must have; None for any number.
        dtypes: those accepted; none for all.
        saved: of an input of a backward, what autograd saves for it: from the call of the forward and its results by
            name. None for the input or result of the same name.
        is_for_backward: of an input of a forward, that its kernel gets none: the backward writes to it.
    """

    name: str
    keyword: str | None = None
    is_optional: bool = False
    dimensions: int | None = None
    dtypes: Sequence[torch.dtype] = ()
    saved: Callable[[Call, Mapping[str, Tensor]], Tensor | None] | None = None
    is_for_backward: bool = False

    @property
    def of_kernel(self) -> str:
        """The kernel's name for it."""
        return self.keyword or f"{self.name}_hbm"


@dataclass(frozen=True)
class Output:
    """A tensor that an operator returns.

    Attributes:
        name: of the result.
        dtype: None for that of the first input; or from the call.
        shape: from the call.
        exists: what must hold beside ``with_<name>`` for it not to be empty.
        fill: what it holds where an input that is not optional has no elements, so that no kernel runs.
        computed: from the call and the kernel's results by name, if the kernel does not return it itself.
        depends_on: inputs by which it has a derivative; None for all.
        requested_by: the option that says whether it is asked for; None for ``with_<name>``, if there is one. What is
            not asked for is empty, [0].
    """

    name: str
    dtype: torch.dtype | Callable[[Call], torch.dtype] | None = torch.float32
    shape: Callable[[Call], Shape] = per_row
    exists: Callable[[Call], bool] | None = None
    fill: float | Callable[[Call], float] = 0.0
    computed: Callable[[Call, Mapping[str, Tensor]], Tensor] | None = None
    depends_on: Sequence[str] | None = None
    requested_by: str | None = None

    @property
    def request(self) -> str:
        """The name of the option that would ask for it."""
        return self.requested_by or f"with_{self.name}"

    def is_given(self, call: Call) -> bool:
        """Whether a call returns it; it is empty otherwise."""
        return bool(call.options.get(self.request, True)) and (self.exists is None or self.exists(call))

    def dtype_of(self, call: Call) -> torch.dtype:
        """The type of it."""
        given = call.first.dtype if self.dtype is None else self.dtype
        return given if isinstance(given, torch.dtype) else given(call)

    def new(self, call: Call, fill: float | Callable[[Call], float] | None = None) -> Tensor:
        """A tensor of its shape, type and device, uninitialized or filled."""
        shape = self.shape(call) if self.is_given(call) else (0,)
        dtype = self.dtype_of(call)
        if fill is None:
            return call.first.new_empty(shape, dtype=dtype)
        return call.first.new_full(shape, fill(call) if callable(fill) else fill, dtype=dtype)


@dataclass(frozen=True)
class Operator:
    """An operator ``torch.ops.nkilib.<name>``, and the kernel that it launches.

    Attributes:
        name: without the namespace.
        inputs: positional; the first one chooses the device.
        outputs: a tuple, or one tensor.
        kernel: ``kernel(...)``, or ``kernel[cores](...)``, gets the inputs and options by name.
        options: dataclasses whose fields are its keywords.
        without: fields of them that are none.
        results: the names of what the kernel returns, in order; empty for those of the outputs.
        on_request: those of them that it returns only if an argument is true, and the name of that.
        arguments: further keywords of the kernel, or others in the place of inputs and options: tiling, dtype, what is
            prepared. It must not look at values.
        may_overwrite: there is a second operator, ``<name>_``, which writes the first output over the first input
            instead of returning it. The kernel is told which by its argument ``inplace``.
        writes: inputs that the kernel always writes to, and for each the name of its result that is the new value.
        check_values: raises where values are out of range. For the CPU alone: elsewhere looking would wait.
        instead: the function of PyTorch to name where this operator is of no use.
    """

    name: str
    inputs: Sequence[Input]
    outputs: Sequence[Output]
    kernel: Any
    options: Sequence[type[Dataclass]] = ()
    without: Sequence[str] = ()
    results: Sequence[str] = ()
    on_request: Mapping[str, str] = field(default_factory=dict)
    arguments: Callable[[Call], Mapping[str, Any]] | None = None
    may_overwrite: bool = False
    writes: Mapping[str, str] = field(default_factory=dict)
    check_values: Callable[[Call], None] | None = None
    instead: str = "the function of torch.nn.functional"

    @cached_property
    def keywords(self) -> tuple[Option, ...]:
        """Its options, in the order of the schema."""
        return tuple(each for group in self.options for each in options_of(group) if each.name not in self.without)

    def unqualified(self, overwrites: bool = False) -> str:
        """The name of the first or the second operator."""
        return f"{self.name}_" if overwrites else self.name

    def qualified(self, overwrites: bool = False) -> str:
        """The name with the namespace of ``torch.library``."""
        return f"{NAMESPACE}::{self.unqualified(overwrites)}"

    def qualified_natively(self, overwrites: bool = False) -> str:
        """The name with the namespace of ``nki_op``."""
        return f"{NATIVE_NAMESPACE}::{self.unqualified(overwrites)}"

    def op(self, device: torch.device, overwrites: bool = False) -> Any:
        """The function of PyTorch that calls it with tensors on a device."""
        name = self.unqualified(overwrites)
        namespace = NATIVE_NAMESPACE if registrar.serves(device, name) else NAMESPACE
        return getattr(getattr(torch.ops, namespace), name)

    def written(self, overwrites: bool = False) -> Mapping[str, str]:
        """Inputs that the first or the second operator writes to, and what to: names of results."""
        return {self.inputs[0].name: self.outputs[0].name} if overwrites else self.writes

    def returned(self, overwrites: bool = False) -> Sequence[Output]:
        """What the first or the second operator returns."""
        return self.outputs[1:] if overwrites else self.outputs

    def schema(self, overwrites: bool = False) -> str:
        """As ``torch.library`` takes it. Inputs default to None where all that follow do."""
        arguments = []
        written = list(self.written(overwrites))
        for at, each in enumerate(self.inputs):
            alias = f"({ascii_lowercase[written.index(each.name)]}!)" if each.name in written else ""
            kind = f"Tensor{alias}{'?' if each.is_optional else ''}"
            has_default = all(further.is_optional for further in self.inputs[at:])
            arguments.append(f"{kind} {each.name}{'=None' if has_default else ''}")
        options = ["*", *(each.schema for each in self.keywords)] if self.keywords else []
        results = ", ".join(["Tensor"] * len(self.returned(overwrites)))
        return f"({', '.join([*arguments, *options])}) -> {results if results == 'Tensor' else f'({results})'}"

    def call(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
        """The arguments by name, with the defaults of those that are not given; options may be positional too."""
        names = [each.name for each in self.inputs]
        given = {**dict(zip([*names, *(each.name for each in self.keywords)], args, strict=False)), **keywords}
        options = {each.name: given.get(each.name, each.default) for each in self.keywords}
        return Call({name: given.get(name) for name in names}, options)

    def keywords_from(self, *groups: Dataclass) -> dict[str, Any]:
        """Its keywords from instances of dataclasses, which may have further fields."""
        names = {each.name for each in self.keywords}
        values = {name: value for group in groups for name, value in values_of(group).items()}
        return {name: value for name, value in values.items() if name in names}
