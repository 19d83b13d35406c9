# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The description of a PyTorch operator as data: an :class:`Operator` of :class:`Input` and :class:`Output`.

The schema, the registration, the launch and the derivative of an operator are made from its description. :class:`Call`
has the arguments of one call, from which functions such as :func:`per_row` and :func:`as_first` compute shapes, dtypes
and arguments of the kernel. :data:`TILE_DTYPES` and :data:`FLOAT_DTYPES` are the dtypes that kernels take.

An operator may have an *in-place variant*, which writes its first output over its first input; the argument
``overwrites`` selects this variant. An option may *request* an output; without the request, an empty tensor is
returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import ascii_lowercase
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.core.host.options import Dataclass, Group, Option, options_from, options_of, values_of
from nkilib.nki import nl
from nkilib.torch.dispatch.devices import NATIVE_NAMESPACE, registrar

NAMESPACE: Final = "nkilib"
# The dtypes of the first input of kernels, and of their tiles.
TILE_DTYPES: Final = {torch.bfloat16: nl.bfloat16, torch.float16: nl.float16, torch.float32: nl.float32}
FLOAT_DTYPES: Final = tuple(TILE_DTYPES)


def compute_properties(instance: object) -> None:
    """Compute the cached properties of an instance, so that a graph of torch.compile can read them.

    A graph cannot compute them, because ``functools.cached_property`` takes a lock in Python 3.11.
    """
    for name, attribute in vars(type(instance)).items():
        if isinstance(attribute, cached_property):
            getattr(instance, name)


@dataclass(frozen=True)
class Call:
    """The arguments of one call of an operator.

    Attributes:
        tensors: the inputs by name, in order; None for an optional input that is not given.
        options: every option by name.
        first: the first input, which determines the device and the dtype of the tiles; it is never optional.
    """

    tensors: Mapping[str, Tensor | None]
    options: Mapping[str, Any]
    first: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", next(iter(self.tensors.values())))

    def tensor(self, name: str) -> Tensor:
        """Return the input ``name``, which must not be None.

        Raises:
            KeyError: the input is optional, and was not given.
        """
        tensor = self.tensors[name]
        if tensor is None:
            raise KeyError(f"{name} is optional: look it up in tensors")
        return tensor

    def group(self, kind: type[Group]) -> Group:
        """Return an instance of the dataclass ``kind``, filled with the options of the call that are its fields."""
        return options_from(kind, self.options)

    def replaced(self, tensors: Mapping[str, Tensor | None], **options: Any) -> Call:
        """Return a copy of the call with these tensors and options added; they replace those of the same name."""
        return Call({**self.tensors, **tensors}, {**self.options, **options})


Shape = tuple[int, ...]


def per_row(call: Call) -> Shape:
    """Return [rows], the shape of an output with one number for each row of the call's first input."""
    return (call.first.shape[0],)


def as_first(call: Call) -> Shape:
    """Return the shape of the call's first input, for an output of the same shape."""
    return tuple(call.first.shape)


@dataclass(frozen=True)
class Input:
    """A tensor that an operator takes.

    Attributes:
        name: the name of the argument.
        keyword: the name of the kernel's argument; None means ``<name>_hbm``.
        is_optional: whether the argument may be None.
        dimensions: the required number of dimensions; None means any number.
        dtypes: the accepted dtypes; empty means all.
        saved: for an input of a backward, a function that returns the tensor that autograd saves for it; its arguments
            are the call of the forward and the forward's results by name. None means the input or result of the same
            name.
        is_for_backward: whether this input of a forward is not passed to its kernel, because only the backward writes
            to it.
    """

    name: str
    keyword: str | None = None
    is_optional: bool = False
    dimensions: int | None = None
    dtypes: Sequence[torch.dtype] = ()
    saved: Callable[[Call, Mapping[str, Tensor]], Tensor | None] | None = None
    is_for_backward: bool = False

    def __post_init__(self) -> None:
        compute_properties(self)

    @cached_property
    def of_kernel(self) -> str:
        """The name of the kernel's argument for this input: :attr:`keyword`, or ``<name>_hbm``."""
        return self.keyword or f"{self.name}_hbm"


@dataclass(frozen=True)
class Output:
    """A tensor that an operator returns.

    Attributes:
        name: the name of the result.
        dtype: the dtype, or a function that returns it for a call; None means the dtype of the first input.
        shape: a function that returns the shape for a call.
        exists: a function that returns whether a call can have the output at all; None means that every call can. If
            it cannot, or does not request the output, an empty tensor is returned.
        fill: the value of the output if a required input has no elements, so that no kernel runs.
        computed: a function that computes the output, if the kernel does not return it; its arguments are the call and
            the kernel's results by name.
        depends_on: the inputs with respect to which the output has a derivative; None means all.
        requested_by: the option that requests the output; None means ``with_<name>``, if there is such an option.
    """

    name: str
    dtype: torch.dtype | Callable[[Call], torch.dtype] | None = torch.float32
    shape: Callable[[Call], Shape] = per_row
    exists: Callable[[Call], bool] | None = None
    fill: float | Callable[[Call], float] = 0.0
    computed: Callable[[Call, Mapping[str, Tensor]], Tensor] | None = None
    depends_on: Sequence[str] | None = None
    requested_by: str | None = None

    def __post_init__(self) -> None:
        compute_properties(self)

    @cached_property
    def request(self) -> str:
        """The name of the option that requests the output: :attr:`requested_by`, or ``with_<name>``.

        An operator need not have such an option.
        """
        return self.requested_by or f"with_{self.name}"

    def is_given(self, call: Call) -> bool:
        """Return whether the call requests the output and can have it; if not, an empty tensor stands in its place."""
        return bool(call.options.get(self.request, True)) and (self.exists is None or self.exists(call))

    def dtype_of(self, call: Call) -> torch.dtype:
        """Return the dtype of the output in a call."""
        dtype = call.first.dtype if self.dtype is None else self.dtype
        return dtype if isinstance(dtype, torch.dtype) else dtype(call)

    def new(self, call: Call, fill: float | Callable[[Call], float] | None = None) -> Tensor:
        """Return a new tensor for the output of a call, filled with ``fill``; uninitialised if ``fill`` is None."""
        shape = self.shape(call) if self.is_given(call) else (0,)
        dtype = self.dtype_of(call)
        if fill is None:
            return call.first.new_empty(shape, dtype=dtype)
        return call.first.new_full(shape, fill(call) if callable(fill) else fill, dtype=dtype)


@dataclass(frozen=True)
class Operator:
    """An operator ``torch.ops.nkilib.<name>``, and the kernel that it launches.

    Attributes:
        name: the name without the namespace.
        inputs: the positional arguments; the first one determines the device.
        outputs: the results; a single one is returned without a tuple.
        kernel: a function that returns the kernel, whose modules are loaded at the first launch. It is called as
            ``kernel(...)`` or ``kernel[cores](...)`` with the inputs and options by name.
        options: dataclasses whose fields are the operator's keyword arguments.
        without: fields of these dataclasses that are not keyword arguments.
        results: the names of the kernel's results, in order; empty if they are the names of the outputs.
        on_request: for each result that the kernel returns only on request, the name of the kernel's argument that
            requests it.
        arguments: a function that returns further keyword arguments of the kernel by name, such as its tiling. One with
            the name of an input's or option's argument replaces it, such as int32 targets. It must not read values.
        may_overwrite: whether there is an in-place variant ``<name>_``. The kernel's argument ``inplace`` selects it.
        writes: by the name of each input that the kernel always writes to, the name of the kernel's result that is the
            input's new value.
        check_values: a function that raises an error if values are out of range. It is called on the CPU only:
            elsewhere reading values would wait for the device.
        instead: the PyTorch function that messages recommend where this operator cannot be used.
    """

    name: str
    inputs: Sequence[Input]
    outputs: Sequence[Output]
    kernel: Callable[[], Any]
    options: Sequence[type[Dataclass]] = ()
    without: Sequence[str] = ()
    results: Sequence[str] = ()
    on_request: Mapping[str, str] = field(default_factory=dict)
    arguments: Callable[[Call], Mapping[str, Any]] | None = None
    may_overwrite: bool = False
    writes: Mapping[str, str] = field(default_factory=dict)
    check_values: Callable[[Call], None] | None = None
    instead: str = "the function of torch.nn.functional"

    def __post_init__(self) -> None:
        compute_properties(self)

    @cached_property
    def keywords(self) -> tuple[Option, ...]:
        """The descriptions of the options, in the order of the schema."""
        return tuple(
            option for group in self.options for option in options_of(group) if option.name not in self.without
        )

    @cached_property
    def _absent(self) -> Mapping[str, None]:
        return dict.fromkeys(self.input_names)

    @cached_property
    def _defaults(self) -> Mapping[str, Any]:
        return {option.name: option.default for option in self.keywords}

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of the schema."""
        return tuple(operand.name for operand in self.inputs)

    @cached_property
    def option_names(self) -> tuple[str, ...]:
        """The names of the options, in the order of the schema."""
        return tuple(option.name for option in self.keywords)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The names of the inputs that are not optional."""
        return tuple(operand.name for operand in self.inputs if not operand.is_optional)

    @cached_property
    def kernel_inputs(self) -> Mapping[str, str]:
        """The name of the kernel's argument for each input, by the name of the input.

        Inputs that are only for the backward are left out.
        """
        return {operand.name: operand.of_kernel for operand in self.inputs if not operand.is_for_backward}

    @cached_property
    def kernel_results(self) -> Sequence[str]:
        """The names of the results that the kernel returns, in order: :attr:`results`, or the names of the outputs."""
        return self.results or [output.name for output in self.outputs]

    @cached_property
    def kernel_options(self) -> tuple[str, ...]:
        """The names of the options that the kernel takes.

        These are all options, except those that request outputs which are computed from the kernel's results.
        """
        computed = {output.request for output in self.outputs if output.name not in self.kernel_results}
        return tuple(name for name in self.option_names if name not in computed)

    def unqualified(self, overwrites: bool = False) -> str:
        """Return the name of the operator, or of its in-place variant, without a namespace."""
        return f"{self.name}_" if overwrites else self.name

    def qualified(self, overwrites: bool = False) -> str:
        """Return the name of the operator, or of its in-place variant, with the namespace of ``torch.library``."""
        return self._qualified[overwrites]

    @cached_property
    def _qualified(self) -> tuple[str, str]:
        return f"{NAMESPACE}::{self.unqualified()}", f"{NAMESPACE}::{self.unqualified(True)}"

    def qualified_natively(self, overwrites: bool = False) -> str:
        """Return the name of the operator, or of its in-place variant, with the namespace of ``nki_op``."""
        return f"{NATIVE_NAMESPACE}::{self.unqualified(overwrites)}"

    def op(self, device: torch.device, overwrites: bool = False) -> Any:
        """Return the function of ``torch.ops`` that calls the operator, or its in-place variant, for tensors on a
        device.

        It is in the namespace of ``nki_op`` if that serves the device, else in the namespace of ``torch.library``.
        """
        name = self.unqualified(overwrites)
        namespace = NATIVE_NAMESPACE if registrar.serves(device, name) else NAMESPACE
        return getattr(getattr(torch.ops, namespace), name)

    def written(self, overwrites: bool = False) -> Mapping[str, str]:
        """Return the inputs that the operator, or its in-place variant, writes to.

        The mapping is from the name of the input to the name of the result that is written over it.
        """
        return {self.inputs[0].name: self.outputs[0].name} if overwrites else self.writes

    def returned(self, overwrites: bool = False) -> Sequence[Output]:
        """Return the outputs that the operator, or its in-place variant, returns. The variant does not return the
        first one.
        """
        return self.outputs[1:] if overwrites else self.outputs

    def schema(self, overwrites: bool = False) -> str:
        """Return the schema of the operator, or of its in-place variant, as text for ``torch.library``.

        An input has the default None if it and all inputs after it are optional.
        """
        arguments = []
        written = list(self.written(overwrites))
        for at, operand in enumerate(self.inputs):
            alias = f"({ascii_lowercase[written.index(operand.name)]}!)" if operand.name in written else ""
            kind = f"Tensor{alias}{'?' if operand.is_optional else ''}"
            has_default = all(further.is_optional for further in self.inputs[at:])
            arguments.append(f"{kind} {operand.name}{'=None' if has_default else ''}")
        options = ["*", *(option.schema for option in self.keywords)] if self.keywords else []
        results = ", ".join(["Tensor"] * len(self.returned(overwrites)))
        return f"({', '.join([*arguments, *options])}) -> {results if results == 'Tensor' else f'({results})'}"

    def call(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
        """Return the arguments of a call by name, with defaults for missing ones.

        Args:
            args: the inputs in order, followed by options.
            keywords: options by name.
        """
        tensors = {**self._absent, **dict(zip(self.input_names, args, strict=False))}
        positional = dict(zip(self.option_names, args[len(self.inputs) :], strict=False))
        return Call(tensors, {**self._defaults, **positional, **keywords})

    def keywords_from(self, *groups: Dataclass) -> dict[str, Any]:
        """Return the operator's keyword arguments from instances of dataclasses. Fields that are none are ignored."""
        return self.taken(values_of(*groups))

    def taken(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of ``options`` that are options of the operator. Missing options are not added."""
        return {name: options[name] for name in self.option_names if name in options}
