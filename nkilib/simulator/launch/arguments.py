# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments and results of a kernel: numpy arrays and CPU torch tensors, without a copy where possible.

- :class:`Arguments`: the arguments of one launch, converted to tensors and back.
- :func:`as_numpy`, :func:`to_torch`, :func:`input_dtype`, :func:`is_array`, :func:`is_torch`, :func:`note_written`: for
  a single array or tensor.
- :func:`map_leaves`, :func:`leaves_of`, :func:`parts_of`: for values nested in tuples, lists, dictionaries and NKI
  objects.
- :class:`Uncomputed`: a shape and a type, which a launch that skips arithmetic returns in place of each tensor.

A *leaf* of a nested value is an item that is not a container.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..hardware.options import Level, refuse
from ..machine.core import Core
from ..machine.issue import check_scope
from ..machine.observer import Watcher
from ..machine.partial_writes import PartialWrites, where_unwritten
from ..memory.storage import Storage
from ..tensors.device_integers import DeviceInteger, VirtualRegister
from ..tensors.grids import NkiGrid
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.calls import bound_call
from ..terms.dtypes import ARRAY_TYPES, LOW_PRECISION, DType, as_dtype, words_of
from ..terms.enums import HBM, MemoryRegion
from ..terms.errors import ArgumentTypeError, NkiValidationError, UncomputedError, UninitializedReadError
from ..terms.nki_object import NKIObject
from ..terms.scopes import Scope, why_apart
from ..terms.spec import Spec
from .overlaps import ArrayArgument, join_overlapping

# Arrays come in a few types, each of which takes a while to name.
_MOST_TYPES = 128
_HAS_WRITABLE_DLPACK = np.lib.NumpyVersion(np.__version__) >= "2.1.0"

# torch types that torch's numpy bridge does not know, by the integer type of the same width that it does.
_TORCH_BITS = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": ("uint8", ml_dtypes.float8_e8m0fnu),
}


def map_leaves(value: Any, path: str, function: Callable[[Any, str], Any]) -> Any:
    """Return ``value`` with ``function(leaf, path)`` in place of every leaf.

    Tuples (named ones too), lists, dictionaries and :class:`NKIObject` instances are rebuilt; everything else, and
    every tensor, register and scalar, is a leaf.

    Args:
        value: the nested value.
        path: the name of ``value`` in messages; the path of an item is ``path[0]``, ``path['key']`` or ``path.field``.
        function: the function that is called with every leaf and its path.
    """
    if isinstance(value, tuple | list):
        items = [map_leaves(item, f"{path}[{number}]", function) for number, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_leaves(item, f"{path}[{key!r}]", function) for key, item in value.items()}
    if isinstance(value, NKIObject) and not isinstance(value, View | DeviceInteger):
        rebuilt = copy.copy(value)
        for field, item in vars(value).items():
            object.__setattr__(rebuilt, field, map_leaves(item, f"{path}.{field}", function))
        return rebuilt
    return function(value, path)


def parts_of(value: Any) -> dict[str, Any] | None:
    """Return the items of a nested value by the end of their path, such as ``[0]`` or ``.field``; None for a leaf."""
    if isinstance(value, tuple | list):
        return {f"[{number}]": item for number, item in enumerate(value)}
    if isinstance(value, dict):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, NKIObject) and not isinstance(value, View | DeviceInteger):
        return {f".{field}": item for field, item in vars(value).items()}
    return None


def _collect(value: Any, leaves: list[Any]) -> None:
    items: Iterable[Any]
    if isinstance(value, tuple | list):
        items = value
    elif isinstance(value, dict):
        items = value.values()
    elif isinstance(value, NKIObject) and not isinstance(value, View | DeviceInteger):
        items = vars(value).values()
    else:
        leaves.append(value)
        return
    for item in items:
        _collect(item, leaves)


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves of ``value`` in the order of :func:`map_leaves`."""
    leaves: list[Any] = []
    _collect(value, leaves)
    return leaves


class Uncomputed:
    """A result of a kernel without values, from a launch with ``skip_arithmetic``.

    Every operation that needs values raises an error. Another launch with ``skip_arithmetic`` accepts the object as an
    argument.

    Attributes:
        kernel: the name of the kernel that returned it.
        path: the position in the kernel's result, such as ``[0]``; empty for the only result.
        shape: the size of each dimension.
        dtype: the NKI type of an element.
    """

    __slots__ = ("dtype", "kernel", "path", "shape")

    def __init__(self, kernel: str, path: str, shape: tuple[int, ...], dtype: DType) -> None:
        self.kernel = kernel
        self.path = path
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def refuse(self, who: str = "") -> NoReturn:
        """Raise the error about missing values; ``who`` is the operation that needs the values.

        Raises:
            UncomputedError: always.
        """
        raise UncomputedError(f"{who}: {self._reason()}" if who else self._reason())

    def _reason(self) -> str:
        which = f"result {self.path}" if self.path else "the result"
        return (
            f"{self.kernel}: {which}, {list(self.shape)} {self.dtype}, has no values: the launch had "
            f"skip_arithmetic=True, which leaves them out; launch the kernel without it to read them"
        )

    def __len__(self) -> int:
        """Return the size of the first dimension, like an array."""
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Uncomputed {list(self.shape)} {self.dtype} of {self.kernel}>"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name!r}: {self._reason()}")

    def _refuse_operation(self, *operands: Any, **options: Any) -> NoReturn:
        self.refuse()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        operand = next((item for item in args if isinstance(item, cls)), None)
        if operand is None:
            raise UncomputedError(f"{function}: an Uncomputed has no values; launch its kernel without skip_arithmetic")
        operand.refuse()

    # Functions of numpy, operators of its numbers and arrays too, come to the second and third.
    __array__ = __array_ufunc__ = __array_function__ = _refuse_operation
    __getitem__ = __setitem__ = __iter__ = __contains__ = _refuse_operation
    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse_operation
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_operation
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __pos__ = __abs__ = _refuse_operation
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse_operation
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse_operation
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse_operation

    __hash__ = object.__hash__


def _in_numpy(tensor: Any) -> npt.NDArray[Any]:
    # Tensor.numpy would prevent resizing the tensor's storage, and FSDP resizes the weights it gathers. Before numpy
    # 2.1 an array from DLPack may be read-only.
    return np.from_dlpack(tensor) if _HAS_WRITABLE_DLPACK else tensor.numpy()


def as_numpy(value: Any, what: str) -> npt.NDArray[Any]:
    """Return a numpy array that shares the memory of ``value``, an array or a CPU tensor; ``what`` is its name in
    errors.

    The array is read-only if autograd tracks ``value``, because autograd would miss a write.
    """
    if isinstance(value, np.ndarray):
        return value
    if value.device.type != "cpu":
        raise ArgumentTypeError(f"{what}: the simulator takes CPU tensors, got one on {value.device}; call .cpu()")
    detached = value.detach()
    kind = str(value.dtype).removeprefix("torch.")
    if kind in _TORCH_BITS:
        bits, numpy_type = _TORCH_BITS[kind]
        torch = sys.modules["torch"]
        array: npt.NDArray[Any] = _in_numpy(detached.view(getattr(torch, bits))).view(numpy_type)
    else:
        array = _in_numpy(detached).view()
    if value.requires_grad:
        array.flags.writeable = False
    return array


@lru_cache(maxsize=_MOST_TYPES)
def _dtype_of(numpy_type: np.dtype[Any]) -> DType:
    return as_dtype(numpy_type)


def input_dtype(array: npt.NDArray[Any], what: str) -> DType:
    try:
        return _dtype_of(array.dtype)
    except TypeError:
        instead = "cast it to " + ("int32" if array.dtype.kind in "iu" else "float32 or bfloat16")
        if array.dtype.kind == "V":  # a structure, or a type that numpy does not know: somebody's packed words
            instead = "make words of a packed type with nkilib.simulator.packed(array, dtype)"
        raise ArgumentTypeError(f"{what}: NKI has no type {array.dtype}; {instead}") from None


class _Input:
    """An array argument of a kernel: the caller's object, and the storage that represents the object in the kernel."""

    def __init__(
        self,
        original: Any,
        kernel: str,
        name: str,
        region: MemoryRegion,
        precise_fp: bool,
        is_unwritable: bool,
        scope: Scope,
    ) -> None:
        self.original = original
        what = f"{kernel}: argument {name!r}"
        array = as_numpy(original, what)
        self.dtype = input_dtype(array, what)
        self.array_type = array.dtype
        self._array = words_of(array, self.dtype)
        if is_unwritable and self._array.flags.writeable:
            self._array = self._array.view()
            self._array.flags.writeable = False
        widened = not precise_fp and self.dtype in LOW_PRECISION
        # In native byte order: a storage is read as bytes.
        data = np.ascontiguousarray(self._array, np.float32 if widened else self._array.dtype.newbyteorder("="))
        if data.ndim != self._array.ndim:  # ascontiguousarray makes 1-D of 0-D
            data = data.reshape(self._array.shape)
        self._is_copy = not np.shares_memory(data, self._array) if data.size else False
        self._data = data
        if not self._array.flags.writeable:
            data.flags.writeable = False  # a write to a copy would be lost
        self._before = data.copy() if self._is_copy and self._array.flags.writeable else None
        self.storage = Storage(data.shape, self.dtype, region, name, precise_fp=precise_fp, data=data, scope=scope)
        self.tensor = NkiTensor(data.shape, self.dtype, self.storage, region, name)

    @property
    def memory(self) -> ArrayArgument:
        return ArrayArgument(self._array, self.storage, self._is_copy)

    def write_back(self) -> None:
        """Copy elements that the kernel wrote to the caller's array, if the storage holds a copy of the array."""
        if self._before is None:
            return
        # As bytes: NaN is not equal to itself. Flat: numpy views no array without dimensions as bytes.
        unchanged = np.array_equal(self._before.reshape(-1).view(np.uint8), self._data.reshape(-1).view(np.uint8))
        if not unchanged:
            np.copyto(self._array, self._data, casting="unsafe")


def _definition_of(func: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(func), "__code__", None)
    return f"<{type(func).__name__}>:0" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def is_torch(value: Any) -> bool:
    # torch is never imported here: if a value is a torch tensor, somebody else has imported it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_torch(value)


def note_written(arrays: Iterable[Any]) -> None:
    """Tell PyTorch that a launch has written ``arrays``, as if by an in-place operation; numpy arrays are ignored.

    Autograd compares counts of such operations (``Tensor._version``): a backward pass for which it has saved such a
    tensor raises PyTorch's error. Tensors made in ``torch.inference_mode()`` have no count, and autograd cannot save
    them.
    """
    tensors = [array for array in arrays if is_torch(array)]
    if tensors:
        sys.modules["torch"].autograd.graph.increment_version(tensors)


def to_torch(array: npt.NDArray[Any], dtype: DType) -> Any:
    torch = sys.modules["torch"]
    dense = np.ascontiguousarray(array).reshape(array.shape)
    if str(dtype) in _TORCH_BITS and dense.dtype == dtype.numpy:
        bits, _ = _TORCH_BITS[str(dtype)]
        return torch.from_numpy(dense.view(bits)).view(getattr(torch, str(dtype)))
    try:
        return torch.from_numpy(dense)
    except TypeError:
        raise NkiValidationError(
            f"the kernel returns a tensor of {dtype}, which torch has no type for; return another type, or pass numpy "
            f"arrays instead of torch tensors"
        ) from None


class Arguments:
    """The converted arguments of one launch; ``args`` and ``kwargs`` are passed to the kernel function.

    Arrays inside tuples, lists, dictionaries and :class:`NKIObject` instances are converted too; everything else is
    passed unchanged. ``unwritable`` has the ids of the arrays that the kernel may only read, ``scope`` is the scope of
    the launch.

    Attributes:
        watcher: the watcher of accesses to arguments that share memory (see overlaps.py); None if it is not needed.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_shared: bool,
        precise_fp: bool,
        unwritable: frozenset[int] = frozenset(),
        signature: inspect.Signature | None = None,
        scope: Scope = (),
    ) -> None:
        self._kernel = getattr(func, "__name__", type(func).__name__)
        self._place = _definition_of(func)
        self._is_shared = is_shared
        self._region = MemoryRegion.shared_hbm if is_shared else MemoryRegion.private_hbm
        self._precise_fp = precise_fp
        self._unwritable = unwritable
        self._scope = scope
        self._inputs: dict[int, _Input] = {}
        bound = bound_call(self._kernel, signature or inspect.signature(func), args, kwargs)
        self.is_abstract = self._is_on_shapes(leaves_of(bound.arguments))
        for name, value in bound.arguments.items():
            bound.arguments[name] = map_leaves(value, name, self._convert)
        self.args = bound.args
        self.kwargs = bound.kwargs
        self.watcher: Watcher | None = join_overlapping(self._memories())

    def _memories(self) -> list[ArrayArgument]:
        return [converted.memory for converted in self._inputs.values()]

    def _is_on_shapes(self, leaves: Iterable[Any]) -> bool:
        return any(isinstance(leaf, Spec) for leaf in leaves)

    def _convert(self, value: Any, name: str) -> Any:
        if self.is_abstract and is_array(value):
            value = Spec(tuple(value.shape), as_dtype(value.dtype))
        if is_array(value):
            if id(value) not in self._inputs:
                is_unwritable = id(value) in self._unwritable
                self._inputs[id(value)] = _Input(
                    value, self._kernel, name, self._region, self._precise_fp, is_unwritable, self._scope
                )
            return self._inputs[id(value)].tensor
        if isinstance(value, Spec):
            storage = Storage(
                *(value.shape, value.dtype, self._region, name),
                precise_fp=self._precise_fp,
                is_abstract=True,
                scope=self._scope,
            )
            return NkiTensor.whole(storage)
        if isinstance(value, np.bool_ | np.integer | np.floating):
            return value.item()  # NKI values are Python's
        if isinstance(value, NkiTensor) and value.storage.scope:
            raise NkiValidationError(
                f"{self._kernel}: argument {name!r}: {value} {why_apart(value.storage.scope, self._scope, '')}"
            )
        if isinstance(value, Uncomputed):
            value.refuse(f"{self._kernel}: argument {name!r}")
        if hasattr(value, "__array__") and not isinstance(value, NkiTensor | np.generic | type):
            kind = f"{type(value).__module__}.{type(value).__name__}"
            raise ArgumentTypeError(
                f"{self._kernel}: argument {name!r}: the simulator takes numpy arrays and CPU torch tensors, got a "
                f"{kind}; convert it, for instance with numpy.asarray"
            )
        return value

    def storages(self) -> list[tuple[Any, Storage]]:
        """Return the caller's arrays among the arguments, with the storages that represent them in the kernel."""
        return [(converted.original, converted.storage) for converted in self._inputs.values()]

    def write_back(self) -> None:
        """Update the caller's arrays that the kernel wrote and that had to be copied, and notify autograd."""
        for converted in self._inputs.values():
            converted.write_back()
        note_written(item.original for item in self._inputs.values() if item.storage.is_changed)

    def results(self, value: Any, core: Core) -> Any:
        """Return the kernel's result, with torch tensors if any argument was a torch tensor, else with numpy arrays.

        Args:
            value: the value that the kernel function returned on core 0.
            core: core 0, after its end.

        Raises:
            NkiValidationError: the kernel returns a grid, a register or a scalar; or it returns a tensor that is not in
                HBM, belongs to another launch, to one of two cores or to the body of a loop, or (with
                ``uninitialized="error"``) has an element that was never written.
        """

        def converted(leaf: Any, path: str) -> Any:
            if isinstance(leaf, NkiGrid):
                raise NkiValidationError(f"{self._kernel}: a kernel returns tensors, got {leaf}; return grid.data")
            if isinstance(leaf, DeviceInteger):
                store = "register_store" if isinstance(leaf, VirtualRegister) else "scalar_store"
                raise NkiValidationError(
                    f"{self._kernel}: a kernel returns tensors, got {leaf}, which the device alone knows; nisa.{store} "
                    f"it to a tensor of nl.shared_hbm and return that"
                )
            return self._tensor_result(leaf, path, core) if isinstance(leaf, NkiTensor) else leaf

        result = map_leaves(value, "", converted)
        if core.options.lost_results != "ignore":
            self._check_not_lost(value, core.options.lost_results)
        return result

    def _check_not_lost(self, value: Any, level: Level) -> None:
        """Check that the kernel returns a value or has written an argument; a launch without data is not checked."""
        if self.is_abstract or any(leaf is not None for leaf in leaves_of(value)):
            return
        if not any(storage.is_changed for storage in self._array_storages()):
            error = NkiValidationError(
                f"{self._kernel}: the kernel returns nothing and writes no argument, so that its results are lost: "
                f"return the tensors of nl.shared_hbm to which it copies them"
            )
            refuse(level, error, self._place)

    def _array_storages(self) -> Iterable[Storage]:
        return [converted.storage for converted in self._inputs.values()]

    def _tensor_result(self, tensor: NkiTensor, path: str, core: Core) -> Any:
        self._check_returned(tensor, core)
        for converted in self._inputs.values():
            whole = converted.tensor
            if (tensor.storage, tensor.layout, tensor.dtype) == (whole.storage, whole.layout, whole.dtype):
                return converted.original
        if tensor.storage.is_abstract:
            return Spec(tensor.shape, tensor.dtype)
        self._check_written(tensor, core)
        if any(is_torch(converted.original) for converted in self._inputs.values()):
            return to_torch(tensor.array, tensor.dtype)
        return tensor.array.view(self._packed_type(tensor.dtype)) if tensor.dtype.is_packed else tensor.array

    def _check_returned(self, tensor: NkiTensor, core: Core) -> None:
        """Check that a kernel may return this tensor.

        Raises:
            NkiValidationError: the tensor is not in HBM, is private to one of two cores, has a dynamic address, or does
                not exist at the end of the kernel.
        """
        if tensor.is_indirect():
            raise NkiValidationError(f"{self._kernel}: a kernel returns tensors at a static address, got {tensor}")
        if tensor.buffer not in HBM:
            raise NkiValidationError(
                f"{self._kernel}: a kernel returns tensors in HBM, got {tensor}; copy it to one in nl.shared_hbm"
            )
        if self._is_shared and tensor.buffer is MemoryRegion.private_hbm:
            raise NkiValidationError(
                f"{self._kernel}: a kernel on two cores returns tensors in nl.shared_hbm; {tensor} belongs to one core"
            )
        check_scope(core, f"{self._kernel}: a kernel returns tensors that it can use at its end", tensor)

    def _packed_type(self, dtype: DType) -> np.dtype[Any]:
        """Return the numpy type of a result of the packed type ``dtype``.

        It is a type of packed arrays if any argument has a packed type, else the integer type of the words.
        """
        types = {array.dtype: array.array_type for array in self._inputs.values() if array.dtype.is_packed}
        return (ARRAY_TYPES | types)[dtype] if types else dtype.numpy

    def _check_written(self, tensor: NkiTensor, core: Core) -> None:
        missing = tensor.storage.count_unwritten(tensor.layout, tensor.dtype)
        if not missing:
            return
        if core.options.uninitialized != "ignore":
            writes = core.observers.find(PartialWrites)
            what = (
                f"{self._kernel}: the kernel returns {tensor}, of which {missing} of {tensor.size} elements were never "
                f"written: {where_unwritten(writes, tensor)}"
            )
            refuse(core.options.uninitialized, UninitializedReadError(what), self._place)
        tensor.storage.fill_unwritten(tensor.layout, tensor.dtype)
