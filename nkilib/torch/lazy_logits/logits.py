# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``LazyLogits``: what a fused output layer returns in place of logits, computed only if something needs them.

A function of torch with this object as an argument calls :meth:`LazyLogits.__torch_function__`, and a method calls
:func:`_called`. Both call :func:`_applied`, which takes the first possible of three ways: record a function whose
result is a form of logits again (``transformations.RECORDED``); run a kernel on hidden states and weights
(:data:`CONSUMERS`); or compute the logits, by the functions that were called on the object so far, and continue with
the tensor.

:class:`HeadCall` is the call of the output layer that the objects come from, and :class:`Mode` the state of torch
during this call. A *form* (:class:`Form`) describes logits that are not computed. The *stock model* is the model
without fused layers.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.experimental.loss.linear.launch import FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.checks import Caller, autocast_dtype
from nkilib.torch.dispatch.dtensors import dtensor
from nkilib.torch.functions.output_layer import results_in_forward
from nkilib.torch.functions.vocab_parallel.linear_placement import averaged
from nkilib.torch.lazy_logits.form import Form, Placed, Term
from nkilib.torch.lazy_logits.record import FUSE, FusedOptions
from nkilib.torch.lazy_logits.transformations import RECORDED, Handler

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


CALLER: Final = Caller(FUSE, "the input of the output layer", "hidden states", "the logits of the model")
# By name, the functions of torch that kernels compute. The module ``consumers`` fills it.
CONSUMERS: Final[dict[str, Handler]] = {}
# The loss of this library among them, whose result is no DTensor even for logits that are one.
OWN_LOSS: Final = "nkilib_cross_entropy"
# Functions that change their first argument; beside these, all whose names end with one underscore.
_IN_PLACE: Final = frozenset(
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "and", "or")
)
# The functions of which a scale in place is recorded as its other form.
_OUT_OF_PLACE: Final = {"mul_": "mul", "__imul__": "mul", "div_": "div", "__itruediv__": "div"}
# Functions whose argument beside the logits may be a tensor of temperatures.
_PRODUCTS: Final = ("mul", "multiply", "__mul__", "__rmul__")
_SCALES: Final = (*_PRODUCTS, "div", "divide", "true_divide", "__truediv__", "__rdiv__")
# Functions of two tensors of which either may be lazy.
_OF_EITHER: Final = (*_PRODUCTS, "add", "__add__", "__radd__", "__rdiv__")
# What is true of the logits if it is of the hidden states, which have their device, their kind and their layout.
_FLAGS: Final = ("cuda", "cpu", "meta", "xla", "sparse", "quantized", "nested", "contiguous", "complex", "conj")
_OF_HIDDEN: Final = frozenset((*(f"is_{name}" for name in _FLAGS), "is_floating_point", "layout", "get_device"))
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OF_ONE: Final = (
    "neg",
    "pos",
    "abs",
    "invert",
    "getitem",
    "setitem",
    "contains",
    "bool",
    "float",
    "int",
    "index",
    "array",
)
# Operators of Python, which it looks up in the class alone.
_OPERATORS: Final = (*_COMPARISONS, *_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), *_OF_ONE)


@dataclass(frozen=True)
class Mode:
    """The state of torch that decides how logits are computed, at the time when the output layer or a function was
    called.

    Attributes:
        is_grad_enabled: whether a graph is recorded.
        autocast: the dtype of autocast, or None if autocast is off.
    """

    is_grad_enabled: bool
    autocast: torch.dtype | None

    @classmethod
    def current(cls, device: torch.device) -> Mode:
        """Return torch's present mode, for tensors on a device."""
        return cls(torch.is_grad_enabled(), autocast_dtype(device))

    def autocast_again(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context in which autocast is as it was in this mode.

        The caller has to restore gradient mode itself, since ``torch.compile`` does not support that context in a stack
        of contexts.
        """
        if autocast_dtype(device) == self.autocast:
            return ExitStack()
        return torch.autocast(device.type, self.autocast, enabled=self.autocast is not None)


@dataclass(eq=False)
class HeadCall:
    """A call of the output layer.

    Attributes:
        options: the options of ``fuse_linear_loss``, and the record of the layer.
        term: the hidden states and the layer of the call.
        mode: the mode of the call.
        versions: the version counters of the hidden states and of the parameters, which count changes in place; None in
            a traced graph, which cannot read them.
        results: references to the lazy logits that the call returned or that functions made from them; none in a traced
            graph.
        num_results: how many such lazy logits there have been, those of a traced graph included.
    """

    options: FusedOptions
    term: Term
    mode: Mode
    versions: tuple[int, ...] | None
    results: list[weakref.ReferenceType[LazyLogits]] = field(default_factory=list)
    num_results: int = 0

    def live_results(self) -> list[LazyLogits]:
        """Return the lazy logits in :attr:`results` that have not been freed."""
        return [logits for reference in self.results if (logits := reference()) is not None]

    def stock_logits(self) -> Tensor:
        """Return the logits, computed with the layer's own matrix product and bias."""
        term = self.term
        target = torch.zeros((), dtype=torch.int64, device=term.hidden.device)
        (logits,) = results_in_forward(term.layer, term.hidden, target, _linear)
        return logits

    def check_unchanged(self) -> None:
        """Check that the hidden states and the parameters have not changed since the call.

        A graph of ``torch.compile`` is not checked, because it cannot read version counters.

        Raises:
            RuntimeError: they have changed; or ``fully_shard`` has sharded parameters again that tensor parallelism
                shards too.
        """
        placed, hidden = dtensor(self.term.layer.weight), dtensor(self.term.hidden)
        if placed is not None and hidden is not None and placed.device_mesh != hidden.device_mesh:
            raise RuntimeError(
                f"{FUSE}: an output layer whose classes are spread over ranks must keep its weight until the logits "
                f"are used, got one that fully_shard has sharded again after the forward; pass "
                f"reshard_after_forward=False to fully_shard for the whole model, or compute the loss inside of it"
            )
        if self.versions is None or torch.compiler.is_compiling():
            return
        if versions_of(self.term) != self.versions:
            raise RuntimeError(
                f"{FUSE}: the logits of this call must be used before its hidden states and the parameters of the "
                f"output layer change, got a change in place since; use them before optimizer.step(), or keep "
                f"logits.compute() from before"
            )


def versions_of(term: Term) -> tuple[int, ...]:
    """Return the version counters of hidden states and parameters; 0 for inference tensors, which have none."""
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in (term.hidden, *term.parameters))


def replicated(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return a tensor that every rank has whole as a replicated DTensor on ``mesh``."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)


def whole(parameter: Tensor) -> Tensor:
    """Return a parameter, gathered if ``fully_shard`` left it sharded after the forward of the root module."""
    placed = dtensor(parameter)
    return parameter if placed is None else averaged(CALLER, "the weight of the output layer", placed)


def _linear(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
    if dtensor(hidden) is not None:
        return (F.linear(hidden, weight, bias),)
    return (F.linear(hidden, whole(weight), None if bias is None else whole(bias)),)


@dataclass(frozen=True, eq=False)
class Made:
    """The call that made lazy logits from others, kept so that it can be repeated with tensors.

    Attributes:
        function, args, kwargs: the call.
        item: the index in the result of the call if that is a tuple, else None.
        mode: torch's mode during the call.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    item: int | None
    mode: Mode


@dataclass(eq=False, repr=False)
class LazyLogits:
    """Logits that are computed only if something needs them.

    Code may pass the object to a loss in place of a tensor [..., V]: views and selections of positions, scales, caps,
    temperatures, casts and ``log_softmax`` are recorded; ``cross_entropy``, ``log_softmax`` with ``gather``,
    ``logsumexp`` and ``argmax`` run kernels on hidden states and weights. Everything else computes the logits and goes
    on with them, so results are those of the stock model. The object is not a ``torch.Tensor``: ``isinstance`` is
    False.

    Attributes:
        form: the description of the logits: products, scale, cap, temperatures and dtype.
        call: the call of the output layer that the logits come from.
        made: the function that made the object from others; None for the result of the call itself.
        known: results of kernels that a later function may need too, by name.
    """

    form: Form
    call: HeadCall
    made: Made | None = None
    known: dict[str, Tensor] = field(default_factory=dict)
    _computed: Tensor | None = None

    def __post_init__(self) -> None:
        self.call.num_results += 1
        if not torch.compiler.is_compiling():
            self.call.results.append(weakref.ref(self))

    @property
    def shape(self) -> torch.Size:
        """The shape of the logits."""
        return self.form.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the logits have when they are computed."""
        return self.form.dtype

    @property
    def device(self) -> torch.device:
        """The device of the hidden states, on which the logits would be computed."""
        return self.form.hidden.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.form.ndim

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow back from the logits, as for a tensor."""
        tensors = (tensor for term in self.form.terms for tensor in (term.hidden, *term.parameters))
        is_wanted = self.call.mode.is_grad_enabled and not self.form.is_detached
        return is_wanted and any(tensor.requires_grad for tensor in tensors)

    @property
    def is_leaf(self) -> bool:
        """Whether the logits are a leaf of autograd's graph."""
        return not self.requires_grad

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Return the shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.ndim

    ndimension = dim

    def numel(self) -> int:
        """Return the number of logits."""
        return self.shape.numel()

    nelement = numel

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all logits."""
        return self.numel() * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        state = "not computed" if self._computed is None else "computed"
        return f"LazyLogits(shape={tuple(self.shape)}, dtype={self.dtype}, {state})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self._tensor("copy.deepcopy"), memo)

    def __reduce__(self) -> Any:
        return _as_it_is, (self._tensor("pickle").detach(),)

    def compute(self) -> Tensor:
        """Return the logits as a tensor. The first call computes it, by repeating the functions that made the object.

        Raises:
            RuntimeError: the hidden states or the parameters of the output layer have changed since it was called; or
                this call is in the forward of a ``torch.autograd.Function`` that got the object as an argument.
        """
        _check_outside_of_functions(self)
        if self._computed is None:
            self.call.check_unchanged()
            made = self.made
            mode = self.call.mode if made is None else made.mode
            with torch.set_grad_enabled(mode.is_grad_enabled), mode.autocast_again(self.device):
                if made is None:
                    self._computed = self.call.stock_logits()
                else:
                    result = made.function(*_computed(made.args), **_computed(made.kwargs))
                    self._computed = result if made.item is None else result[made.item]
            self.made = None  # what it was made of may be freed, as without this library
        return self._computed

    def _tensor(self, function: str) -> Tensor:
        if self._computed is None:
            self.call.options.tell(function, self.nbytes, self.call.term.layer.training)
        return self.compute()

    def __getattr__(self, name: str) -> Any:
        kind = _kind_of(self.form)
        if name.startswith("__") or not hasattr(kind, name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        if name in _OF_HIDDEN:
            return getattr(self.form.hidden, name)
        if name == "placements":
            return _placements_of(self.form)
        if name == "device_mesh":
            return self.form.mesh
        function = getattr(kind, name)
        if callable(function):
            return functools.partial(_called, name, function, self)
        return getattr(self._tensor(name), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _applied(getattr(function, "__name__", str(function)), function, tuple(args), kwargs or {})


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _check_outside_of_functions(logits: LazyLogits) -> None:
    """Raise an error within the forward of a ``torch.autograd.Function`` that got the lazy logits as an argument.

    Autograd does not see a tensor there, so no gradient would flow back to the model, without any message.

    Raises:
        RuntimeError: such a forward is running.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not logits.requires_grad:
        return
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code is _APPLY:
            caller, given = frame.f_locals["cls"], (*frame.f_locals["args"], *frame.f_locals["kwargs"].values())
            if any(isinstance(item, LazyLogits) and item.call is logits.call for item in given):
                raise RuntimeError(
                    f"{FUSE}: {caller.__name__}, a torch.autograd.Function, must get its logits as a tensor, got "
                    f"logits that are not computed, to which it would pass no gradient; call it with "
                    f"logits.compute(), or leave the model as it is"
                )
        frame = frame.f_back


_APPLY: Final = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def _kind_of(form: Form) -> type[Tensor]:
    if form.placed is Placed.TENSOR:
        return Tensor
    from torch.distributed.tensor import DTensor

    return DTensor


def _placements_of(form: Form) -> tuple[Any, ...]:
    from torch.distributed.tensor import Replicate, Shard

    return (Shard(form.class_dim) if form.placed is Placed.SPREAD else Replicate(),)


def _lazy_in(value: Any) -> Iterator[LazyLogits]:
    if isinstance(value, LazyLogits):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _lazy_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _lazy_in(item)


def _mapped(function: Callable[[LazyLogits], Any], value: Any) -> Any:
    """Return ``value`` with ``function`` applied to all lazy logits in it, also inside tuples, lists and dicts."""
    if isinstance(value, LazyLogits):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(function, item) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(function, item) for key, item in value.items()}
    return value


def _forms(value: Any) -> Any:
    return _mapped(lambda logits: logits.form, value)


def _computed(value: Any) -> Any:
    return _mapped(lambda logits: logits.compute(), value)


def _replaced(value: Any, tensors: dict[int, Tensor]) -> Any:
    return _mapped(lambda logits: tensors[id(logits)], value)


def _is_in_place(name: str, kwargs: dict[str, Any]) -> bool:
    is_named_so = name.endswith("_") and not name.endswith("__")
    return is_named_so or name == "__setitem__" or name in _IN_PLACE or kwargs.get("out") is not None


def _kept(name: str, value: Any) -> Any:
    """Return the positional or keyword arguments of the recorded function ``name``, with copies of tensors that may be
    temperatures.

    The caller may change such a tensor in place before the logits are computed.
    """
    if name not in _SCALES:
        return value
    if isinstance(value, dict):
        return {key: item.clone() if isinstance(item, Tensor) else item for key, item in value.items()}
    return tuple(item.clone() if isinstance(item, Tensor) else item for item in value)


def _compute_all(call: HeadCall, function: str) -> None:
    """Compute all lazy logits of a call before one of them changes in place: as tensors, some of them share memory."""
    for logits in call.live_results():
        logits._tensor(function)


def _made(
    first: LazyLogits, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    """Return lazy logits for ``result``, the form or the tuple of forms that a recorded call of ``function`` gave."""
    mode = Mode.current(first.device)
    if isinstance(result, tuple):
        return tuple(
            LazyLogits(form, first.call, Made(function, args, kwargs, item, mode)) for item, form in enumerate(result)
        )
    return LazyLogits(result, first.call, Made(function, args, kwargs, None, mode))


def _share_known(logits: LazyLogits, rows: tuple[LazyLogits, ...], dim: int = 0) -> None:
    """Give each of ``rows``, the result of ``unbind`` along ``dim``, its part of the known scores of ``logits``."""
    at = dim % logits.ndim
    for name, values in logits.known.items():
        for row, value in zip(rows, values.unbind(at - (at > logits.form.class_dim)), strict=True):
            row.known[name] = value


def _changed_in_place(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LazyLogits | None:
    """Scale lazy logits in place without computing them, and return them.

    The result is None, so that the logits are computed, if no form in the same dtype describes the change, or if other
    lazy logits of the same call exist, whose memory would change too.

    Raises:
        RuntimeError: in a graph of ``torch.compile``, more than one object came from the call; it is unknown which of
            them still exist.
    """
    logits: LazyLogits = args[0]
    call = logits.call
    if torch.compiler.is_compiling():
        if call.num_results > 1:
            raise RuntimeError(
                f"{FUSE}: in a graph of torch.compile logits must not change in place, got {name}_; write the result "
                f"to another name, as in logits = logits / temperature"
            )
    elif len(call.live_results()) > 1:
        return None
    form = RECORDED[name](_forms(args), kwargs)
    if not isinstance(form, Form) or form.dtype != logits.form.dtype:  # in place, the dtype stays
        return None
    before = LazyLogits(logits.form, call, logits.made)
    mode = Mode.current(logits.device)
    logits.made = Made(getattr(torch, name), (before, *_kept(name, args[1:])), _kept(name, kwargs), None, mode)
    logits.form = form
    logits.known.clear()
    return logits


def _without_logits(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    lazy: list[LazyLogits],
) -> Any:
    """Return the result of a function that can be recorded, or computed by a kernel; None if it needs the logits."""
    first = args[0]
    if kwargs.get("out") is not None:
        return None
    if isinstance(first, Tensor):
        if name in ("to", "type_as") and len(args) == 2 and args[1] is lazy[0]:
            return first.to(lazy[0].device, lazy[0].dtype)
        if name not in _OF_EITHER:
            return None
    elif name in _OF_HIDDEN:
        return getattr(lazy[0].form.hidden, name)(*args[1:])
    if name in _OUT_OF_PLACE:
        return _changed_in_place(_OUT_OF_PLACE[name], args, kwargs)
    if name in RECORDED:
        result = RECORDED[name](_forms(args), _forms(kwargs))
        if result is not None:
            made = _made(lazy[0], function, _kept(name, args), _kept(name, kwargs), result)
            if name == "unbind":
                _share_known(lazy[0], made, *args[1:], **kwargs)
            return made
    is_consumer = name in CONSUMERS and isinstance(first, LazyLogits)
    if not is_consumer or not FEATURES_MIN <= first.form.num_features <= FEATURES_MAX:
        return None
    form: Form = first.form
    if form.mesh is not None and form.classes != form.terms[0].layer.out_features:
        return None
    result = CONSUMERS[name](args, kwargs)
    if result is None:
        return None
    first.call.options.calls.count(name)
    if form.mesh is None or form.placed is Placed.TENSOR or name == OWN_LOSS:
        return result
    return replicated(result, form.mesh)


def _applied(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function of torch some of whose arguments are lazy logits: record it, run a kernel, or
    compute the logits.
    """
    if "input" in kwargs:
        args, kwargs = (kwargs["input"], *args), {key: value for key, value in kwargs.items() if key != "input"}
    lazy = list(_lazy_in((args, kwargs)))
    for logits in lazy:
        _check_outside_of_functions(logits)
    if args and all(logits._computed is None for logits in lazy):
        result = _without_logits(name, function, args, kwargs, lazy)
        if result is not None:
            return result
    if _is_in_place(name, kwargs):
        for logits in lazy:
            _compute_all(logits.call, name)
    tensors = {id(logits): logits._tensor(name) for logits in lazy}
    return function(*_replaced(args, tensors), **_replaced(kwargs, tensors))


def _called(name: str, function: Callable[..., Any], logits: LazyLogits, *args: Any, **kwargs: Any) -> Any:
    return _applied(name, function, (logits, *args), kwargs)


def _operator(name: str) -> Callable[..., Any]:
    def method(self: LazyLogits, *args: Any, **kwargs: Any) -> Any:
        return _applied(name, getattr(Tensor, name), (self, *args), kwargs)

    method.__name__ = name
    return method


for _name in (*(f"__{name}__" for name in _OPERATORS), *_IN_PLACE):
    if hasattr(Tensor, _name):
        setattr(LazyLogits, _name, _operator(_name))


LazyLogits.__hash__ = object.__hash__  # type: ignore[method-assign]
