# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments of a launch with ``skip_arithmetic``: shapes and types, with values only where the launch needs them.

An array whose values are needed is copied, so that the kernel cannot write to the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..machine.core import Core
from ..machine.left_out import LeftOut
from ..memory.storage import Storage
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import LOW_PRECISION
from ..terms.errors import NkiValidationError
from ..terms.packed_arrays import words_of
from ..terms.scopes import Scope
from ..terms.spec import Spec
from .arguments import Arguments, as_numpy, input_dtype, is_array, is_torch, to_torch
from .overlaps import ArrayArgument, sharing
from .uncomputed import Uncomputed


class ArgumentOrigin(NamedTuple):
    """The ``origin`` of an argument's :class:`Storage`; a launch that needs the values finds the argument by it.

    Attributes:
        argument: the name of the argument.
    """

    argument: str


class _ArrayArgument(NamedTuple):
    """An array argument and the tensor that represents it."""

    name: str
    array: npt.NDArray[Any]
    tensor: NkiTensor


class ArgumentsLeftOut(Arguments):
    """The arguments of one launch with ``skip_arithmetic``; ``left_out`` says which need values. No array is written.

    Raises:
        NkiValidationError: if the values of an argument are needed that was passed without values.
        NotImplementedError: if the values of an argument are needed that shares memory with another argument.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_shared: bool,
        precise_fp: bool,
        left_out: LeftOut,
        scope: Scope,
    ) -> None:
        self._left_out = left_out
        self._array_arguments: dict[int, _ArrayArgument] = {}
        self._storages: list[Storage] = []
        self._has_torch = False
        super().__init__(func, args, kwargs, is_shared=is_shared, precise_fp=precise_fp, scope=scope)
        self._check_apart()

    def _is_on_shapes(self, leaves: Iterable[Any]) -> bool:
        return False

    def _convert(self, value: Any, name: str) -> Any:
        if isinstance(value, Spec | Uncomputed):
            return self._without_values(value, name)
        if not is_array(value):
            return super()._convert(value, name)
        if id(value) not in self._array_arguments:
            self._array_arguments[id(value)] = self._of_array(value, name)
        return self._array_arguments[id(value)].tensor

    def _without_values(self, value: Spec | Uncomputed, name: str) -> NkiTensor:
        origin = ArgumentOrigin(name)
        self._left_out.cannot_make(origin)
        if self._left_out.makes(origin):
            raise NkiValidationError(
                f"{self._kernel}: argument {name!r} came without values, and an address, the bound of a loop or a "
                f"check depends on them; pass an array, or state with trips= how often the loop runs"
            )
        return NkiTensor.whole(self._storage(value.shape, value.dtype, name, origin, None))

    def _of_array(self, value: Any, name: str) -> _ArrayArgument:
        self._has_torch |= is_torch(value)
        what, origin = f"{self._kernel}: argument {name!r}", ArgumentOrigin(name)
        array = as_numpy(value, what)
        dtype = input_dtype(array, what)
        words = words_of(array, dtype)
        data = None
        if self._left_out.makes(origin):
            widened = not self._precise_fp and dtype in LOW_PRECISION
            data = np.array(words, np.float32 if widened else words.dtype.newbyteorder("="), order="C")
        storage = self._storage(words.shape, dtype, name, origin, data)
        storage.is_read_only = not words.flags.writeable
        return _ArrayArgument(name, array, NkiTensor(words.shape, dtype, storage, self._region, name))

    def _array_storages(self) -> Iterable[Storage]:
        return self._storages

    def _storage(
        self, shape: tuple[int, ...], dtype: Any, name: str, origin: Hashable, data: npt.NDArray[Any] | None
    ) -> Storage:
        storage = Storage(
            shape,
            dtype,
            self._region,
            name,
            precise_fp=self._precise_fp,
            data=data,
            is_abstract=data is None,
            origin=origin,
            scope=self._scope,
        )
        storage.written.mark_all()
        self._storages.append(storage)
        return storage

    def _memories(self) -> list[ArrayArgument]:
        return [
            ArrayArgument(
                array, tensor.storage, not array.flags.c_contiguous or array.dtype != tensor.storage.numpy_dtype
            )
            for _, array, tensor in self._array_arguments.values()
        ]

    def _check_apart(self) -> None:
        """Raise an error if an array that must be copied shares memory with another argument.

        The kernel could write to it through that argument, which the private copy would miss.
        """
        arguments = list(self._array_arguments.values())
        for pair in sharing([argument.array for argument in arguments]):
            first, second = sorted(
                (arguments[number] for number in pair), key=lambda item: item.tensor.storage.is_abstract
            )
            if not first.tensor.storage.is_abstract:
                raise NotImplementedError(
                    f"{self._kernel}: arguments {first.name!r} and {second.name!r} share memory, and an address "
                    f"depends on the first: skip_arithmetic cannot follow writes from one to the other; copy one"
                )

    def _tensor_result(self, tensor: NkiTensor, path: str, core: Core) -> Any:
        self._check_returned(tensor, core)
        self._check_written(tensor, core)
        if self._has_torch:  # or the type is refused
            to_torch(np.empty((0,), tensor.storage.numpy_type_of(tensor.dtype)), tensor.dtype)
        return Uncomputed(self._kernel, path, tensor.shape, tensor.dtype)
