# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments and results of a kernel: numpy arrays and CPU torch tensors, without a copy where possible."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..hardware.options import Level
from ..machine.core import Core
from ..machine.levels import refuse
from ..machine.observer import Watcher
from ..machine.operands import check_scope
from ..machine.partial_writes import PartialWrites, where_unwritten
from ..memory.storage import Storage
from ..tensors.grids import NkiGrid
from ..tensors.registers import VirtualRegister
from ..tensors.scalars import DeviceInteger
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import LOW_PRECISION, DType, as_dtype
from ..terms.errors import ArgumentTypeError, NkiValidationError, UninitializedReadError
from ..terms.packed_arrays import ARRAY_TYPES, words_of
from ..terms.regions import HBM, MemoryRegion
from ..terms.scopes import Scope, why_apart
from ..terms.signatures import bound_call
from ..terms.spec import Spec
from .containers import leaves_of, map_leaves
from .overlaps import ArrayArgument, join_overlapping
from .uncomputed import Uncomputed

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


class _Input:
    """An array argument: the caller's object, and the storage that represents it in the kernel."""

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
        """The caller's memory, with the storage that represents it."""
        return ArrayArgument(self._array, self.storage, self._is_copy)

    def write_back(self) -> None:
        """Copy what the kernel wrote back to the caller's array, if the storage holds a copy of the array."""
        if self._before is None:
            return
        # As bytes: NaN is not equal to itself. Flat: numpy views no array without dimensions as bytes.
        unchanged = np.array_equal(self._before.reshape(-1).view(np.uint8), self._data.reshape(-1).view(np.uint8))
        if not unchanged:
            np.copyto(self._array, self._data, casting="unsafe")


class Arguments:
    """The converted arguments of one launch; ``args`` and ``kwargs`` are passed to the kernel function.

    Arrays inside tuples, lists, dictionaries and :class:`NKIObject` instances are converted too; everything else
    passes through unchanged. The kernel may only read arrays whose ids are in ``unwritable``. ``scope`` is the scope of
    the launch.

    Attributes:
        watcher: the watcher of the accesses to arguments that share memory (see overlaps.py); None if none is needed.
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
        """Return the caller's arrays, each with the storage that represents it."""
        return [converted.memory for converted in self._inputs.values()]

    def _is_on_shapes(self, leaves: Iterable[Any]) -> bool:
        """Return whether some argument is a :class:`Spec`, so that the launch has shapes and no data."""
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
        """Return the caller's arrays, each with the storage that represents it."""
        return [(converted.original, converted.storage) for converted in self._inputs.values()]

    def write_back(self) -> None:
        """Update the caller's arrays that the kernel wrote to and that had to be copied, and notify autograd."""
        for converted in self._inputs.values():
            converted.write_back()
        note_written(item.original for item in self._inputs.values() if item.storage.is_changed)

    def results(self, value: Any, core: Core) -> Any:
        """Return the kernel's result, with torch tensors if any argument was a torch tensor, else with numpy arrays.

        Args:
            value: the value that the kernel function returned on core 0.
            core: core 0, after its end.

        Raises:
            NkiValidationError: if the kernel returns a tensor that is not in HBM, was never written or belongs to
                another launch, another core or the body of a loop; or a grid, a register or a scalar.
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
        """Check that the caller gets something from the kernel. A launch on shapes does not record what it writes."""
        if self.is_abstract or any(leaf is not None for leaf in leaves_of(value)):
            return
        if not any(storage.is_changed for storage in self._array_storages()):
            error = NkiValidationError(
                f"{self._kernel}: the kernel returns nothing and writes no argument, so that its results are lost: "
                f"return the tensors of nl.shared_hbm to which it copies them"
            )
            refuse(level, error, self._place)

    def _array_storages(self) -> Iterable[Storage]:
        """Return the storages of the arrays among the arguments."""
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
            NkiValidationError: if it is not in HBM that all cores share, if its address is read at run time, or if it
                does not exist at the end of the kernel.
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
        """Return the numpy type of a packed result: the type of its words, unless an argument had a packed type."""
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


def _definition_of(func: Callable[..., Any]) -> str:
    """Return ``file:line`` where a kernel is defined, or the type's name of a callable that is no function."""
    code = getattr(inspect.unwrap(func), "__code__", None)
    return f"<{type(func).__name__}>:0" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def is_torch(value: Any) -> bool:
    # torch is never imported here: if a value is a torch tensor, somebody else has imported it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_torch(value)


def as_numpy(value: Any, what: str) -> npt.NDArray[Any]:
    """Return a numpy array that shares the memory of ``value``.

    It is read-only if autograd tracks ``value``, because autograd would miss a write.
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


def _in_numpy(tensor: Any) -> npt.NDArray[Any]:
    """Return the memory of a CPU tensor of PyTorch as a numpy array.

    ``Tensor.numpy`` makes the tensor's storage one that can no longer be resized, and FSDP resizes the weights it
    gathers. Before numpy 2.1 an array from DLPack may be read-only.
    """
    return np.from_dlpack(tensor) if _HAS_WRITABLE_DLPACK else tensor.numpy()


def note_written(arrays: Iterable[Any]) -> None:
    """Count a launch that has written ``arrays`` as an in-place operation on those that are tensors of PyTorch.

    Autograd compares these counts (``Tensor._version``): a backward pass for which it has saved such a tensor raises
    PyTorch's error. Tensors that were made in ``torch.inference_mode()`` have no count, and cannot be saved either.
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
