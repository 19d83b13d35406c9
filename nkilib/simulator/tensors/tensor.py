# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``NkiTensor``: a view (shape, strides, offset) of a storage, as in NKI, without Python operators.

- :class:`NkiTensor`: the tensor, with its text as numpy prints it. Only assignment moves data.
- :class:`PythonOperators`: its base class, whose operators raise errors that name the instruction to use.
- :class:`OutsideTensor`: a view whose pattern leaves its tensor; every use of the view raises an error.

Source: ``nki/api/nki/language/__init__.py`` (class NkiTensor), ``nki/get-started/nki-language-guide.rst`` (Tensor
Values, Tensor Indexing) and ``nki/deep-dives/nki-aps.rst`` of the NKI documentation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from ..memory.storage import Storage
from ..terms.descriptions import describe_foreign_value
from ..terms.dtypes import LOW_PRECISION, DType, as_dtype
from ..terms.enums import HBM, MemoryRegion, as_region
from ..terms.errors import ArgumentTypeError, NkiValidationError, OutOfRangeError, TensorTypeError
from ..terms.layout import Layout, dense
from ..terms.nki_object import NKIObject
from ..terms.other_names import NUMPY_NAMES
from .device_integers import DeviceInteger
from .reshaped_views import AccessPatterns
from .view import Indirect, View

# Python's operators, each with its symbol and the function to use instead: NKI documents none on tensors.
_BINARY = {
    "add": ("+", "nl.add"),
    "sub": ("-", "nl.subtract"),
    "mul": ("*", "nl.multiply"),
    "truediv": ("/", "nl.divide"),
    "floordiv": ("//", "nl.divide and nl.floor"),
    "mod": ("%", "nl.mod"),
    "pow": ("**", "nl.power"),
    "matmul": ("@", "nl.matmul"),
    "and": ("&", "nl.bitwise_and"),
    "or": ("|", "nl.bitwise_or"),
    "xor": ("^", "nl.bitwise_xor"),
    "lshift": ("<<", "nl.left_shift"),
    "rshift": (">>", "nl.right_shift"),
}
_COMPARISONS = {
    "lt": ("<", "nl.less"),
    "le": ("<=", "nl.less_equal"),
    "gt": (">", "nl.greater"),
    "ge": (">=", "nl.greater_equal"),
}
_UNARY = {
    "neg": ("-", "nl.negative"),
    "abs": ("abs()", "nl.abs"),
    "invert": ("~", "nl.invert"),
}
# The functions by which numbers and arrays of numpy compute an operator, with its symbol and the function to use.
_BY_UFUNC = {
    np.floor_divide: _BINARY["floordiv"],
    **{
        getattr(np, function.removeprefix("nl.")): (symbol, function)
        for symbol, function in (*_BINARY.values(), *_COMPARISONS.values())
        if " " not in function
    },
}
_EQUALITY = {np.equal: False, np.not_equal: True}
_ELSE = "the functions of nki.language (in a debugger, .array is a numpy view)"

# The text of an element that was never written.
_UNWRITTEN = "--"


def _refusal(symbol: str, function: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *others: Any) -> NoReturn:
        raise TensorTypeError(f"{self}: Python's {symbol} is no operation of NKI on tensors; use {function}")

    return refuse


class PythonOperators(NKIObject):
    """The base of ``NkiTensor``: arithmetic raises TensorTypeError; ``==`` compares identity, so that tensors are
    hashable.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> bool:
        """Raise TensorTypeError; but with a numpy number or array on the left, ``==`` returns False and ``!=`` True.

        numpy calls this method for its elementwise functions, and for an operator with a numpy number or array on its
        left.
        """
        is_call = method == "__call__"
        if is_call and ufunc in _EQUALITY and isinstance(inputs[0], np.generic | np.ndarray):
            return _EQUALITY[ufunc]
        if is_call and ufunc in _BY_UFUNC:
            symbol, function = _BY_UFUNC[ufunc]
            raise TensorTypeError(
                f"{self}: Python's {symbol} is no operation of NKI on tensors, nor is numpy's {ufunc.__name__}; use "
                f"{function}"
            )
        raise self._no_operation(ufunc.__name__ if is_call else f"{ufunc.__name__}.{method}")

    def __array_function__(self, function: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a numpy function that computes nothing, such as ``np.shape``.

        Raises:
            TensorTypeError: for any other function; the message names the function and the replacement.
        """
        try:
            return function._implementation(*args, **kwargs)
        except TensorTypeError:
            raise self._no_operation(function.__name__) from None

    if not TYPE_CHECKING:  # else every attribute would exist for type checkers

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; for a method of numpy or PyTorch, such as ``sum``, the message names the
            replacement.
            """
            advice = "" if name.startswith("_") else f"; to compute, use {NUMPY_NAMES.get(name, _ELSE)}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{advice}")

    def _no_operation(self, name: str) -> TensorTypeError:
        return TensorTypeError(
            f"{self}: numpy's {name} is no operation of NKI on tensors; use {NUMPY_NAMES.get(name, _ELSE)}"
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TensorTypeError: numpy would treat a tensor as a single object."""
        raise TensorTypeError(f"{self}: numpy cannot compute with a tensor; use {_ELSE}")

    def __index__(self) -> NoReturn:
        """Raise TensorTypeError. ``int()``, ``float()`` and ``range()`` call this method too."""
        raise TensorTypeError(
            f"{self}: the values of a tensor are not known while the kernel is being built; nisa.register_load brings "
            f"one into a register"
        )


def _refuse_in_place(symbol: str, function: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *others: Any) -> NoReturn:
        use = f"{function}, or nisa.tensor_tensor(t, t, other, op={function}) for a result in the same tile"
        if " " in function or function == "nl.matmul":  # no single operator of tensor_tensor
            use = function
        elif symbol == "+" and self.buffer is MemoryRegion.psum:
            use = "nisa.nc_matmul(t, stationary, moving), which adds to what an earlier matmul wrote there"
        raise TensorTypeError(f"{self}: Python's {symbol}= is no operation of NKI on tensors; use {use}")

    return refuse


for _name, (_symbol, _function) in _BINARY.items():
    setattr(PythonOperators, f"__i{_name}__", _refuse_in_place(_symbol, _function))
for _table, _prefixes in ((_BINARY, ("", "r")), (_COMPARISONS, ("",)), (_UNARY, ("",))):
    for _name, (_symbol, _function) in _table.items():
        for _prefix in _prefixes:
            setattr(PythonOperators, f"__{_prefix}{_name}__", _refusal(_symbol, _function))


def _shown(size: int, edge: int) -> npt.NDArray[np.intp]:
    """Return the indices of a dimension that are printed: all, or the first and last ``edge`` indices of a long
    dimension.
    """
    if size <= 2 * edge:
        return np.arange(size)
    return np.concatenate([np.arange(edge), np.arange(size - edge, size)])


def _unwritten(tensor: View, picks: list[npt.NDArray[np.intp]]) -> npt.NDArray[np.bool_]:
    written = tensor.storage.written
    shape = tuple(len(pick) for pick in picks)
    if written.is_full or written.is_untouched:  # and no mask is made for the answer
        return np.full(shape, not written.is_full)
    mask = written.mask_of(tensor.layout, tensor.storage.width_of(tensor.dtype))
    return np.logical_not(mask[np.ix_(*picks)].all(axis=-1)).reshape(shape)


def _texts(values: npt.NDArray[Any], unwritten: npt.NDArray[np.bool_], is_low_precision: bool) -> list[str]:
    """Return the text of each element, all of the same width; elements in the mask ``unwritten`` are ``--``."""
    written = values[~unwritten]
    if is_low_precision:
        written = written.astype(np.float32)
    # numpy pads all elements to one width, with the points below each other; a line for each keeps them apart.
    block = np.array2string(written, separator="\n", threshold=sys.maxsize, max_line_width=sys.maxsize)
    lines = block.removeprefix("[").removesuffix("]").split("\n")
    width = max(len(lines[0]), len(_UNWRITTEN) if unwritten.any() else 0)
    formatted = iter(lines)
    return [(_UNWRITTEN if is_missing else next(formatted)).rjust(width) for is_missing in unwritten.reshape(-1)]


def _values_text(tensor: View) -> str:
    """Return the elements of a tensor as text, as numpy prints an array, shortened as ``np.set_printoptions`` says.

    Unwritten elements are ``--``. Only the elements that are shown are read. For a view with a dynamic address, the
    text names the index, because only an instruction reads it. This function never raises an error.
    """
    indirect = tensor.indirect_access
    if indirect is not None:
        index = indirect.index
        return f"at an address that is read at run time from {index!s}"
    if tensor.storage is None:
        return "without a storage"
    if tensor.storage.is_abstract:
        reason = "the launch was given shapes only" if tensor.storage.is_shape_only else "skip_arithmetic left them out"
        return f"without values: {reason}"
    options = np.get_printoptions()
    is_shortened = tensor.size > options["threshold"]
    edge = options["edgeitems"] if is_shortened else max(tensor.shape, default=0)
    picks = [_shown(size, edge) for size in tensor.shape]
    values = np.asarray(tensor.array[np.ix_(*picks)])
    texts = _texts(values, _unwritten(tensor, picks), tensor.dtype in LOW_PRECISION)
    # numpy puts dots for what it leaves out, so it is given one element more to leave out of a dimension.
    sizes = [min(size, 2 * edge + 1) for size in tensor.shape]
    places = [
        np.where(pick < edge, pick, pick - size + shown)
        for pick, size, shown in zip(picks, tensor.shape, sizes, strict=True)
    ]
    positions = np.zeros(sizes, np.intp)
    positions[np.ix_(*places)] = np.arange(values.size).reshape(values.shape)
    with np.printoptions(threshold=0 if is_shortened else sys.maxsize):
        return np.array2string(positions, formatter={"int": lambda position: texts[int(position)]})


class NkiTensor(AccessPatterns, PythonOperators):
    """A tensor in SBUF, PSUM or HBM; create one with ``nl.ndarray``.

    ``print`` shows the values of a tensor, ``repr`` and f-strings one line; in a debugger ``t.array`` is a numpy view
    of the values.

    Attributes:
        shape: the size of each dimension; on chip, dimension 0 counts partitions.
        strides: for each dimension, the number of elements from one index to the next.
        offset: the position of the first element, counted from the start of the storage.
        dtype: the type of an element.
        buffer: the memory region.
        name: the name in messages.
    """

    __slots__ = ()

    # Set for results of functions on tiles, and for results of nl.equal and similar functions; see the methods below.
    is_computed = False
    is_comparison = False
    # Set for the data of a grid on chip: the number of rows of tiles that lie side by side in the same partitions.
    rows_of_tiles = 1
    # The function that an assignment runs; set later, because instructions are built on tensors.
    _copy_tile: ClassVar[Callable[[NkiTensor, NkiTensor], object]]

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        storage: Any,
        buffer: MemoryRegion | str = MemoryRegion.sbuf,
        name: str = "",
        address: tuple[int, ...] | None = None,
    ) -> None:
        """Make a dense tensor in a storage; kernels use ``nl.ndarray`` instead.

        Raises:
            NkiValidationError: ``address`` is given and differs from the address of the storage.
        """
        try:
            sizes = tuple(int(size) for size in shape)
            place = None if address is None else tuple(address)
        except (TypeError, ValueError):
            raise ArgumentTypeError(
                f"NkiTensor: shape and address must be tuples of integers, got {shape!r} and {address!r}"
            ) from None
        if place is not None and place != getattr(storage, "address", None):
            raise NkiValidationError(
                f"NkiTensor: a tensor lies where its storage does, at {getattr(storage, 'address', None)}, not at "
                f"{place}; place one with nl.ndarray(..., address=...)"
            )
        self._set(dense(sizes), as_dtype(dtype), storage, as_region(buffer), name, None)

    @property
    def data(self) -> NkiTensor:
        """The tensor itself. Grids have the property too (:attr:`NkiGrid.data`), so that code may accept either."""
        return self

    @classmethod
    def whole(cls, storage: Storage) -> NkiTensor:
        """Return a tensor of all elements of a storage, in the storage's shape and type. For the simulator only."""
        tensor = cls.__new__(cls)
        tensor._set(storage.layout, storage.dtype, storage, storage.region, storage.name, None)
        tensor.is_whole = True
        return tensor

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Return elements ``start`` to ``end`` (exclusive) of dimension ``dim``, every ``step``-th.

        Raises:
            OutOfRangeError: ``0 <= start <= end <= shape[dim]`` or ``step >= 1`` does not hold.
        """
        return self._slice(dim, start, end, step)

    def select(self, dim: int, index: int | NkiTensor | DeviceInteger) -> NkiTensor:
        """Return one element of dimension ``dim``, at an integer or a run-time index.

        A run-time index is a register, an ``NkiScalar`` (32-bit for a tensor on chip) or an SBUF tensor (1, 1). Its
        value is read when an instruction uses the view.

        Raises:
            OutOfRangeError: an integer leaves the dimension; a run-time index is checked when the view is used.
            NkiValidationError: the view would have two run-time indices, or one on the partition dimension.
        """
        return self._select(dim, index)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Return row ``vector_offset[p]`` of dimension 0 for every partition p: the view of a gather or a scatter.

        Raises:
            NkiValidationError: ``dim`` is not 0, this tensor is not in HBM or already has a dynamic address, or
                ``vector_offset`` is not an integer SBUF tensor of shape (P, 1).
        """
        return self._vector_select(dim, vector_offset)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Return the free elements that ``index`` selects, on trn3: as an input a gather, as an output a scatter.

        Element ``[p, i]`` is the free element ``index[g + i % G, i // G]`` of partition p. Groups of G partitions share
        their offsets; g is the first partition in the group of p. G is 32 for the Tensor engine and 16 for other
        engines. The view has the shape (P, ``num_elem``); it can be reshaped but not indexed. Instructions that
        document tensor indirection accept it (see ``isa/indirection.py``).

        Raises:
            NkiValidationError: the target is older than trn3; this tensor is in HBM, already has a dynamic address or
                is not dense in a partition; ``index`` is not an integer SBUF tensor (P, K), or has fewer than
                ``num_elem`` elements.
        """
        return self._gathered(index, num_elem)

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """Return the same elements in another shape, without moving them.

        Raises:
            NkiValidationError: the number of elements differs, the partition dimension (or the dimension of a vector
                offset) would change, or the new shape would need a copy.
        """
        return self._reshape(shape)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """Return the dimensions in the order ``dims``; dimension 0 stays first on chip and after ``vector_select``.

        Raises:
            NkiValidationError: ``dims`` is no permutation, or moves a dimension 0 that must stay first.
        """
        return self._permute(dims)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Return the tensor with dimension ``dim``, of size 1, repeated ``size`` times by a stride of 0.

        Raises:
            NkiValidationError: the dimension does not have size 1, or is the partition dimension or the dimension of a
                vector offset; or ``size`` is not positive.
        """
        return self._broadcast(dim, size)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Return the tensor with a new dimension of size 1 at position ``dim``; a negative ``dim`` counts from the end
        of the new shape.

        Raises:
            OutOfRangeError: ``dim`` is not in [0, ndim].
            NkiValidationError: the new dimension would come before the partition dimension or the dimension of a vector
                offset.
        """
        return self._expand_dim(dim)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Return the tensor without dimension ``dim``, which has size 1.

        Raises:
            OutOfRangeError: the dimension does not exist.
            NkiValidationError: the dimension does not have size 1, is the partition dimension or the dimension of a
                vector offset, or is the only dimension (on chip, the only free one).
        """
        return self._squeeze_dim(dim)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Return the tensor with dimension ``dim`` split into dimensions of ``shape``; one size may be -1 and is then
        inferred.

        Raises:
            OutOfRangeError: the dimension does not exist.
            NkiValidationError: the product of the sizes is not the size of the dimension; or the dimension is the
                partition dimension (unless it stays unchanged) or the dimension of a vector offset.
        """
        return self._reshape_dim(dim, shape)

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Return the tensor with dimensions ``start_dim`` to ``end_dim`` (inclusive) merged into one.

        Raises:
            OutOfRangeError: a dimension does not exist.
            NkiValidationError: the dimensions are not contiguous in memory, or include the partition dimension or the
                dimension of a vector offset.
        """
        return self._flatten_dims(start_dim, end_dim)

    def rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name: ``t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})``.

        An item of a pattern is the name of a dimension, or a tuple of names. In ``src_pattern`` a tuple is a dimension
        that is split into the named ones; in ``dst_pattern`` the named dimensions are merged into one. ``fixed_sizes``
        gives the sizes of names; one size in each tuple may be omitted and is then inferred.

        Raises:
            NkiValidationError: the patterns do not fit each other or the shape, or :meth:`reshape_dim`, :meth:`permute`
                or :meth:`flatten_dims` raises the error.
        """
        return self._rearrange(src_pattern, dst_pattern, fixed_sizes)

    def view(self, dtype: Any) -> NkiTensor:
        """Return the tensor with its bits read as ``dtype``; the size of the last dimension changes by the ratio of the
        widths.

        Raises:
            NkiValidationError: this view has a dynamic address, or its last dimension is not dense, or has a number of
                bytes that is no multiple of the new width.
        """
        return self._view(dtype)

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: NkiTensor | DeviceInteger | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """Return a view over the storage by an access pattern ``[[stride, count], ...]``, in elements of ``dtype``.

        The pattern replaces this view's shape and strides. ``offset`` is added to the view's own offset, as the API's
        docstring says. (In the deep dive on access patterns it replaces the view's offset; both agree if the tensor
        starts at the beginning of its storage.) A scalar or vector offset counts in steps of dimension ``indirect_dim``
        of the tensor on which ``ap`` is called, whatever the pattern says. A scalar offset is a register, an
        ``NkiScalar`` (int64 only for a tensor in HBM) or an SBUF tensor (1, 1).

        On chip the first stride must be one partition. That is the number of elements in a partition of the storage. If
        the view is dense in a partition, the number of elements per partition of the view is accepted too, as in
        published kernels, which treat a slice as a tensor of its own; ``offset`` then counts in these partitions.

        A static pattern that leaves the storage, or a partition, makes a view that raises OutOfRangeError when it is
        used.

        Raises:
            NkiValidationError: a scalar and a vector offset are given, the pattern is malformed, the first stride of an
                on-chip pattern is not one partition, or ``indirect_dim`` is not 0 with a vector offset.
        """
        return self._ap(pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype)

    reinterpret_cast = view

    @classmethod
    def assign_by(cls, copy_tile: Callable[[NkiTensor, NkiTensor], object]) -> None:
        """Make ``t[key] = tile`` call ``copy_tile(t[key], tile)``. The module of ``nisa.tensor_copy`` calls this
        method.
        """
        cls._copy_tile = staticmethod(copy_tile)

    def mark_computed(self) -> None:
        """Record that a function of ``nki.language`` computed this tensor. ``if tensor:`` then raises an error."""
        self.is_computed = True

    def mark_comparison(self) -> None:
        """Record that this tensor is the result of a comparison. ``assert tensor`` then checks that the comparison
        holds everywhere.
        """
        self.is_comparison = True

    def mark_rows_of_tiles(self, rows: int) -> None:
        """Record that this tensor holds ``rows`` rows of a grid of tiles, side by side in the same partitions."""
        self.rows_of_tiles = rows

    def _outside(self, layout: Layout, dtype: DType, message: str) -> NkiTensor:
        return OutsideTensor(self, layout, dtype, message)

    def __str__(self) -> str:
        """Return the line of ``repr`` and the values, shortened as in numpy; ``--`` marks unwritten elements."""
        return f"{self!r}\n{_values_text(self)}"

    def __bool__(self) -> bool:
        """Return True for a tensor in HBM or a whole tile, as published kernels test whether an optional tensor exists.

        On the device every tensor is true. For a computed tile, or a view such as ``t[0, 0]``, the test can only mean
        the values, which is an error. The result of a comparison is True if the comparison holds everywhere; otherwise
        this is an error.
        """
        if self.is_comparison:
            return self._holds_everywhere()
        if self.buffer in HBM or (self.is_whole and not self.is_computed):
            return True
        raise NkiValidationError(
            f"{self}: the values of a tensor are not known while the kernel is being built; nisa.register_load brings "
            f"one into a register, and 'is not None' asks whether there is a tensor"
        )

    def _holds_everywhere(self) -> bool:
        """For a tensor that is the result of a comparison: return True if all its elements are true, otherwise raise an
        error.

        Examples of ``nki.language`` assert comparisons. On the device every tensor is true; a kernel that continued
        with False would behave differently there. In a launch on shapes the result is True.
        """
        if self.storage.is_shape_only:
            return True
        self.storage.need_values(self)
        failed = self.size - int(np.count_nonzero(self.array))
        if failed:
            raise NkiValidationError(
                f"{self}: the comparison does not hold for {failed} of {self.size} elements, and a kernel cannot "
                f"branch on that: the values of a tensor are not known while it is being built"
            )
        return True

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy the tile ``value`` to ``self[key]``, which is on chip and has the same shape, with one
        ``nisa.tensor_copy``.

        The documentation lists the method without a description; the migration guide fills a slice of a tile in this
        way.
        """
        view = self[key]
        if not view.is_on_chip():
            raise NkiValidationError(
                f"NkiTensor.__setitem__: only a tile in sbuf or psum can be assigned to, got {self}; write to HBM "
                f"with nisa.dma_copy or nl.store"
            )
        if not isinstance(value, NkiTensor) or not value.is_on_chip() or value.shape != view.shape:
            raise NkiValidationError(
                f"NkiTensor.__setitem__: {view} takes a tile of that shape in sbuf or psum, got "
                f"{describe_foreign_value(value)}; nisa.memset sets all elements, nisa.dma_copy reads from HBM"
            )
        type(self)._copy_tile(view, value)


class OutsideTensor(NkiTensor):
    """A view whose pattern leaves its tensor; every use of the view raises an error.

    Published kernels make the views of all iterations of a loop and use only those that a later condition selects.
    """

    __slots__ = ("_message",)

    def __init__(self, tensor: View, layout: Layout, dtype: DType, message: str) -> None:
        self._message = message
        self._set(layout, dtype, tensor.storage, tensor.buffer, tensor.name, None)

    # What an instruction, and each method that makes a view of this one, asks for before it looks at an element.
    @property
    def indirect_access(self) -> NoReturn:
        raise OutOfRangeError(self._message)

    @indirect_access.setter
    def indirect_access(self, indirect: Indirect | None) -> None:
        """Accept the None that ``View._set`` assigns, and store nothing, because reading this attribute always raises
        an error.
        """
