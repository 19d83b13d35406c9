# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of torch that turn a form of logits into another form, so that the logits are still not computed.

A *form* (:class:`Form`) describes logits that are not computed. The registry :data:`RECORDED` has a :class:`Handler`
for each function whose result is a form again: views and selections of positions, a cut of the vocabulary, scales,
caps, temperatures, casts, softmax and log-softmax. A handler returns None for arguments with which no form describes
the result; the logits are then computed. :func:`registering` adds functions to a registry.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.torch.dispatch.checks import autocast_dtype
from nkilib.torch.dispatch.dtensors import dtensor
from nkilib.torch.dispatch.operator import FLOAT_DTYPES
from nkilib.torch.lazy_logits.form import Form, Kind, Placed

Function = Callable[..., Any]


@dataclass(frozen=True)
class Handler:
    """A substitute for a function of torch.

    Attributes:
        function: the function to call. It may have fewer parameters than torch's, and returns None for arguments that
            it does not take.
        most: the largest number of positional arguments; None: any number.
        keywords: the names of its keyword parameters; None: any.
    """

    function: Callable[..., Any]
    most: int | None
    keywords: frozenset[str] | None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Handler:
        """Return a handler that calls ``function``, with the limits on arguments taken from its signature."""
        parameters = inspect.signature(function).parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        positional = [item for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
        most = None if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional)
        names = frozenset(item.name for item in parameters)
        return cls(function, most, None if inspect.Parameter.VAR_KEYWORD in kinds else names)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the function; None if the function has no parameter for one of the arguments."""
        is_known = self.most is None or len(args) <= self.most
        if not is_known or (self.keywords is not None and any(name not in self.keywords for name in kwargs)):
            return None
        return self.function(*args, **kwargs)


def registering(registry: dict[str, Handler]) -> Callable[..., Callable[[Function], Function]]:
    """Return a decorator that enters a function in ``registry`` as the substitute for the torch functions and methods
    of the given names.
    """

    def of_names(*names: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            registry.update(dict.fromkeys(names, Handler.of(function)))
            return function

        return register

    return of_names


RECORDED: Final[dict[str, Handler]] = {}
_records: Final = registering(RECORDED)


def _as_shape(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], (int, torch.SymInt)) else tuple(sizes)


@_records("view", "reshape")
def _reshaped(form: Form, *shape: Any, **other: Any) -> Form | None:
    sizes = _as_shape(shape)
    if other or not form.is_last or not sizes or isinstance(sizes[0], torch.dtype):
        return None
    if sizes[-1] == -1:
        known = math.prod(sizes[:-1])
        if known <= 0 or known * form.classes != form.shape.numel():
            return None
    elif sizes[-1] != form.classes:
        return None
    return form.mapped(lambda hidden: hidden.reshape(*sizes[:-1], hidden.shape[-1]), len(sizes) - 1)


@_records("flatten")
def _flattened(form: Form, start_dim: int = 0, end_dim: int = -1) -> Form | None:
    start, end = start_dim % form.ndim, end_dim % form.ndim
    if not form.is_last or end == form.class_dim != start:
        return None
    return form.mapped(lambda hidden: hidden.flatten(start, end), form.class_dim - (end - start))


@_records("unflatten")
def _unflattened(form: Form, dim: int, sizes: Sequence[int]) -> Form | None:
    at = dim % form.ndim
    if at == form.class_dim:
        return None
    further = len(sizes) - 1 if at < form.class_dim else 0
    return form.mapped(lambda hidden: torch.unflatten(hidden, at, sizes), form.class_dim + further)


@_records("squeeze")
def _squeezed(form: Form, dim: int | None = None) -> Form | None:
    if not isinstance(dim, int) or form.ndim == 1 or dim % form.ndim == form.class_dim:
        return None
    at = dim % form.ndim
    is_dropped = form.hidden.shape[at] == 1 and at < form.class_dim
    return form.mapped(lambda hidden: hidden.squeeze(at), form.class_dim - is_dropped)


@_records("unsqueeze")
def _unsqueezed(form: Form, dim: int) -> Form:
    at = dim % (form.ndim + 1)
    return form.mapped(lambda hidden: hidden.unsqueeze(at), form.class_dim + (at <= form.class_dim))


def _ordered(form: Form, order: Sequence[int]) -> Form:
    return form.mapped(lambda hidden: hidden.permute(*order), list(order).index(form.class_dim))


@_records("transpose", "swapaxes", "swapdims")
def _transposed(form: Form, dim0: int, dim1: int) -> Form:
    order = list(range(form.ndim))
    first, second = dim0 % form.ndim, dim1 % form.ndim
    order[first], order[second] = second, first
    return _ordered(form, order)


@_records("permute")
def _permuted(form: Form, *dims: Any, **other: Any) -> Form | None:
    order = [dim % form.ndim for dim in _as_shape(dims)] if dims else []
    return _ordered(form, order) if not other and sorted(order) == list(range(form.ndim)) else None


@_records("movedim", "moveaxis")
def _moved(form: Form, source: Any, destination: Any) -> Form | None:
    if not isinstance(source, int) or not isinstance(destination, int):
        return None
    order = [dim for dim in range(form.ndim) if dim != source % form.ndim]
    order.insert(destination % form.ndim, source % form.ndim)
    return _ordered(form, order)


@_records("contiguous")
def _unchanged(form: Form, **other: Any) -> Form | None:
    return None if other else form


@_records("detach")
def _detached(form: Form) -> Form:
    terms = (replace(term, hidden=term.hidden.detach(), parameters=()) for term in form.terms)
    return replace(form, terms=tuple(terms), is_detached=True)


@_records("clone")
def _cloned(form: Form, **other: Any) -> Form:
    return form


def _is_index(item: Any) -> bool:
    is_known = item is None or (
        isinstance(item, (int, slice, EllipsisType, torch.SymInt)) and not isinstance(item, bool)
    )
    return is_known or (isinstance(item, Tensor) and (item.dtype == torch.bool or not item.is_floating_point()))


def _dimensions(item: Any) -> int:
    """Return the number of dimensions of the indexed tensor that one item of an index replaces: 0 for None and ``...``,
    the dimensions of a mask for a bool tensor, else 1.
    """
    if item is None or item is Ellipsis:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _rank(form: Form, items: tuple[Any, ...]) -> int:
    """Return the number of dimensions after indexing logits of a form with these items.

    All items that are tensors broadcast to one shape, which replaces the dimensions that they index.
    """
    tensors = [item for item in items if isinstance(item, Tensor)]
    broadcast = max([0, *(1 if item.dtype == torch.bool else item.dim() for item in tensors)])
    dropped = sum(_dimensions(item) for item in items if not isinstance(item, slice))
    return form.ndim - dropped + broadcast + sum(item is None for item in items)


def _cut(form: Form, classes: slice) -> Form | None:
    """Return the form cut to a slice of its classes; None unless the slice starts with the first class and has step 1.

    If the form is a function of the logits, the slice must keep all classes, because the softmax needs them.
    """
    if classes.step not in (None, 1) or classes.start not in (None, 0):
        return None
    stop = form.classes if classes.stop is None else classes.stop
    if not isinstance(stop, int):
        return None
    stop = stop + form.classes if stop < 0 else min(stop, form.classes)
    is_whole = stop == form.classes
    return replace(form, classes=stop) if is_whole or (form.kind is Kind.LOGITS and stop > 0) else None


@_records("select")
def _selected(form: Form, dim: int, index: int) -> Form | None:
    at = dim % form.ndim
    if at == form.class_dim or not isinstance(index, int):
        return None
    return form.mapped(lambda hidden: hidden.select(at, index), form.class_dim - (at < form.class_dim))


@_records("narrow")
def _narrowed(form: Form, dim: int, start: int, length: int) -> Form | None:
    at = dim % form.ndim
    if at == form.class_dim:
        return _cut(form, slice(start, start + length)) if isinstance(start, int) and start >= 0 else None
    return form.mapped(lambda hidden: hidden.narrow(at, start, length))


@_records("index_select")
def _index_selected(form: Form, dim: int, index: Tensor) -> Form | None:
    at = dim % form.ndim
    return None if at == form.class_dim else form.mapped(lambda hidden: hidden.index_select(at, index))


def _split(name: str) -> Function:
    def split(form: Form, parts: Any, dim: int = 0) -> tuple[Form, ...] | None:
        at = dim % form.ndim
        if at == form.class_dim or isinstance(parts, Tensor):
            return None
        hidden = zip(*(getattr(term.hidden, name)(parts, at) for term in form.terms), strict=True)
        rows = [tuple(replace(term, hidden=part) for term, part in zip(form.terms, row, strict=True)) for row in hidden]
        temperatures: Sequence[Tensor | None] = [form.temperatures] * len(rows)
        if form.has_own_temperatures:
            temperatures = getattr(form.temperatures, name)(parts, at)
        pairs = zip(rows, temperatures, strict=True)
        return tuple(replace(form, terms=terms, temperatures=divisors) for terms, divisors in pairs)

    return split


for _name in ("split", "split_with_sizes", "chunk", "tensor_split"):
    _records(_name)(_split(_name))


@_records("unbind")
def _unbound(form: Form, dim: int = 0) -> tuple[Form, ...] | None:
    at = dim % form.ndim
    if at == form.class_dim:
        return None
    further = form.class_dim - (at < form.class_dim)
    return tuple(form.mapped(partial(torch.select, dim=at, index=row), further) for row in range(form.shape[at]))


@_records("__getitem__")
def _indexed(form: Form, index: Any) -> Form | None:
    """Return the form indexed by positions and by a slice of the first classes; None for any other index.

    The dimension of the classes must be the last.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    if not form.is_last or not all(_is_index(item) for item in items):
        return None
    missing = form.ndim - sum(_dimensions(item) for item in items)
    at = next((place for place, item in enumerate(items) if item is Ellipsis), None)
    if at is None:
        items += [slice(None)] * missing
    else:
        items[at : at + 1] = [slice(None)] * missing
    of_classes = items.pop()
    if not isinstance(of_classes, slice) or Ellipsis in [item for item in items if not isinstance(item, Tensor)]:
        return None
    cut = _cut(form, of_classes)
    if cut is None:
        return None
    whole = (*items, slice(None))
    return cut.mapped(lambda hidden: hidden[whole], _rank(form, whole) - 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_PRODUCTS: Final = {
    frozenset((Kind.SOFTMAX, Kind.LOG_SOFTMAX)): Kind.P_LOG_P,
    frozenset((Kind.SOFTMAX, Kind.LOGITS)): Kind.P_Z,
}


def _product(first: Form, second: Form) -> Form | None:
    """Return the form of p z or p log p, from the forms of its factors: p, the probabilities, and z or log p of the
    same positions. The result is None for any other pair of factors.
    """
    kinds = {first.kind, second.kind}
    kind = _PRODUCTS.get(frozenset(kinds)) if len(kinds) == 2 else None
    alike = replace(first, kind=second.kind, factor=second.factor, dtype=second.dtype).is_same(second)
    if kind is None or not alike:
        return None
    dtype = torch.promote_types(first.dtype, second.dtype)
    return replace(first, kind=kind, factor=first.factor * second.factor, dtype=dtype)


def divided_by_tensor(form: Form, divisor: Tensor, is_inverse: bool = False) -> Form | None:
    """Return the form divided by a tensor of one element, or of one for each position; None for other tensors.

    On the CPU this reads the values, see :meth:`Form.divided`.

    Args:
        form: the form of the logits that are divided.
        divisor: a tensor that broadcasts to the logits, with one element along the classes.
        is_inverse: whether the logits are multiplied by the tensor instead, so that its reciprocal is the temperature.
    """
    if divisor.requires_grad or divisor.is_complex() or divisor.dtype == torch.bool or divisor.dim() > form.ndim:
        return None
    if divisor.layout != torch.strided or dtensor(divisor) is not None:
        return None
    if divisor.device != form.hidden.device and divisor.dim() > 0:
        return None
    dtype = form.dtype if divisor.dim() == 0 else torch.promote_types(form.dtype, divisor.dtype)
    sizes = (*(1,) * (form.ndim - divisor.dim()), *divisor.shape)
    of_one_class = (*form.shape[: form.class_dim], 1, *form.shape[form.class_dim + 1 :])
    is_known = all(size in (1, whole) for size, whole in zip(sizes, of_one_class, strict=True))
    if not is_known or dtype not in FLOAT_DTYPES:
        return None
    # A copy, which stays when the caller's tensor changes.
    numbers = divisor.detach().to(form.hidden.device, torch.float32, copy=True)
    numbers = numbers.reciprocal() if is_inverse else numbers
    numbers = numbers.reshape(()) if numbers.numel() == 1 else numbers.reshape(sizes).expand(of_one_class)
    divided = form.divided(numbers)
    return None if divided is None else replace(divided, dtype=dtype)


@_records("mul", "multiply", "__mul__", "__rmul__")
def _multiplied(form: Any, other: Any) -> Form | None:
    """Return the form multiplied by a number, by a tensor of one element, or by another form (:func:`_product`); None
    for other factors.

    A tensor with one factor for each position gives None: it may be a mask, and no temperature stands for a factor of
    0.
    """
    if isinstance(form, Form) and isinstance(other, Form):
        return _product(form, other)
    if not isinstance(form, Form):
        form, other = other, form
    if isinstance(other, Tensor):
        return divided_by_tensor(form, other, is_inverse=True) if other.numel() == 1 else None
    return form.scaled(float(other)) if _is_number(other) else None


@_records("div", "divide", "true_divide", "__truediv__")
def _divided(form: Any, other: Any, *, rounding_mode: str | None = None) -> Form | None:
    if not isinstance(form, Form) or rounding_mode is not None:
        return None
    if isinstance(other, Tensor):
        return divided_by_tensor(form, other)
    return form.scaled(1.0 / other) if _is_number(other) and other != 0 else None


@_records("__rdiv__")
def _divisor_first(divisor: Any, form: Any) -> Form | None:
    """Return the form of ``form / divisor``. In the reversed division of graphs of ``torch.compile`` the divisor
    comes first.
    """
    is_known = isinstance(divisor, Tensor) and isinstance(form, Form)
    return divided_by_tensor(form, divisor) if is_known else None


@_records("neg", "negative", "__neg__")
def _negated(form: Form) -> Form | None:
    return form.scaled(-1.0)


def _is_linear(form: Form) -> bool:
    return form.kind is Kind.LOGITS and form.cap is None and form.temperatures is None


@_records("tanh")
def _capped(form: Form) -> Form | None:
    return replace(form, cap=1.0) if _is_linear(form) else None


@_records("add", "__add__", "__radd__")
def _added(form: Any, other: Any, *, alpha: float = 1) -> Form | None:
    """Return the form of the sum of two forms without cap and temperatures: one form with the terms of both. The result
    is None for other summands.
    """
    if not isinstance(form, Form) or not isinstance(other, Form) or alpha != 1:
        return None
    is_alike = form.shape == other.shape and form.class_dim == other.class_dim
    if not is_alike or not _is_linear(form) or not _is_linear(other):
        return None
    terms = (replace(term, factor=item.scale * term.factor) for item in (form, other) for term in item.terms)
    return replace(form, terms=tuple(terms), scale=1.0, dtype=torch.promote_types(form.dtype, other.dtype))


def _cast_to(dtype: torch.dtype) -> Function:
    def cast(form: Form) -> Form:
        return replace(form, dtype=dtype)

    return cast


for _name, _dtype in (("float", torch.float32), ("half", torch.float16), ("bfloat16", torch.bfloat16)):
    _records(_name)(_cast_to(_dtype))


def _is_device_of(value: Any, tensor: Tensor) -> bool:
    """Return whether an argument of ``to`` keeps the device: it is the tensor's device, or no device at all."""
    if not isinstance(value, (str, torch.device)):
        return True
    try:
        device = torch.device(value)
    except RuntimeError:  # the name of a type
        return False
    return device.type == tensor.device.type and device.index in (None, tensor.device.index)


@_records("to", "type")
def _converted(form: Form, *given: Any, **named: Any) -> Form | None:
    """Return the form cast to a floating dtype; None for other casts.

    A device among the arguments must be that of the hidden states. Flags about copies have no effect.
    """
    if not given and not named:
        return None  # the name of the type
    named = {name: value for name, value in named.items() if name not in ("copy", "non_blocking", "memory_format")}
    dtype = form.dtype
    for value in (*given, *named.values()):
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, Tensor) or (
            isinstance(value, (str, torch.device)) and not _is_device_of(value, form.hidden)
        ):
            return None
    return replace(form, dtype=dtype) if dtype in FLOAT_DTYPES else None


@_records("type_as")
def _converted_as(form: Form, other: Any) -> Form | None:
    is_here = isinstance(other, Tensor) and other.device == form.hidden.device
    return replace(form, dtype=other.dtype) if is_here and other.dtype in FLOAT_DTYPES else None


def _normalized(kind: Kind) -> Function:
    def normalized(
        form: Form, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
    ) -> Form | None:
        if not isinstance(dim, int) or dim % form.ndim != form.class_dim or form.kind is not Kind.LOGITS:
            return None
        device = form.hidden.device
        is_float32 = device.type != "cpu" and autocast_dtype(device) is not None
        return replace(form, kind=kind, dtype=dtype or (torch.float32 if is_float32 else form.dtype))

    return normalized


_records("log_softmax")(_normalized(Kind.LOG_SOFTMAX))


_records("softmax")(_normalized(Kind.SOFTMAX))


@_records("exp")
def _exponential(form: Form) -> Form | None:
    is_log = form.kind is Kind.LOG_SOFTMAX and form.factor == 1.0
    return replace(form, kind=Kind.SOFTMAX) if is_log else None


@_records("redistribute")
def _redistributed(
    form: Form, device_mesh: Any = None, placements: Any = None, *, async_op: bool = False
) -> Form | None:
    if device_mesh not in (None, form.mesh) or placements is None or len(placements) != 1:
        return None
    if placements[0].is_replicate():
        return replace(form, placed=Placed.REPLICATED)
    is_same = placements[0].is_shard() and placements[0].dim % form.ndim == form.class_dim
    return form if is_same and form.placed is Placed.SPREAD else None


@_records("to_local")
def _localized(form: Form, *, grad_placements: Any = None) -> Form | None:
    is_whole = form.placed is Placed.REPLICATED and grad_placements is None
    return replace(form, placed=Placed.TENSOR) if is_whole else None


@_records("full_tensor")
def _gathered(form: Form, *, grad_placements: Any = None) -> Form | None:
    return replace(form, placed=Placed.TENSOR) if grad_placements is None else None


def _joining(name: str) -> Function:
    def join(forms: Sequence[Any], dim: int = 0) -> Form | None:
        first = forms[0]
        if not all(isinstance(form, Form) and form.is_alike(first) for form in forms):
            return None
        further = 0
        at = dim % first.ndim
        if name == "stack":
            at = dim % (first.ndim + 1)
            further = int(at <= first.class_dim)
        elif at == first.class_dim:
            return None
        function = torch.stack if name == "stack" else torch.cat
        columns = zip(*(form.terms for form in forms), strict=True)
        terms = (replace(column[0], hidden=function([term.hidden for term in column], at)) for column in columns)
        temperatures = first.temperatures
        if any(form.has_own_temperatures or form.temperatures is not temperatures for form in forms):
            temperatures = function([form.spread_temperatures() for form in forms], at)
        class_dim = first.class_dim + further
        return replace(first, terms=tuple(terms), temperatures=temperatures, class_dim=class_dim)

    return join


for _name in ("cat", "concat", "concatenate", "stack"):
    _records(_name)(_joining(_name))
