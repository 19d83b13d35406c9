# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Helpers around kernels: tensors on the memory of arrays, launches under chosen options, and error messages.

Helpers inside kernels are in `kernels`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.tensors.tensor import NkiTensor
from nkilib.simulator.terms.dtypes import as_dtype
from nkilib.simulator.terms.enums import MemoryRegion
from tests.hangs import HANG_SECONDS

from .kernels import load, without_where

View = Callable[[Any, Any], Any]


def tensor_of(array: Any, buffer: MemoryRegion = MemoryRegion.private_hbm, name: str = "") -> NkiTensor:
    """A tensor whose storage is the memory of `array`: needs no kernel, and shows what a view addresses."""
    dtype = as_dtype(array.dtype)
    return NkiTensor(array.shape, dtype, Storage(array.shape, dtype, buffer, name, data=array), buffer, name)


def in_hbm(array: Any) -> NkiTensor:
    """A tensor in HBM on the memory of `array`."""
    return tensor_of(array, MemoryRegion.private_hbm)


def in_sbuf(array: Any) -> NkiTensor:
    """A tensor in SBUF on the memory of `array`, whose first dimension counts partitions."""
    return tensor_of(array, MemoryRegion.sbuf)


def counted(*shape: int, dtype: Any = np.float32) -> Any:
    """An array whose elements are their own positions."""
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def hbm_cube() -> NkiTensor:
    """4 x 3 x 8 in HBM, counted."""
    return in_hbm(counted(4, 3, 8))


def sbuf_cube() -> NkiTensor:
    """The same in SBUF, of four partitions."""
    return in_sbuf(counted(4, 3, 8))


def empty(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.private_hbm) -> NkiTensor:
    """A tensor of one of the NKI types, with unwritten elements."""
    return NkiTensor(shape, dtype, Storage(shape, as_dtype(dtype), buffer, ""), buffer)


def indices(*values: int, dtype: Any = np.int32) -> NkiTensor:
    """An index tensor in SBUF, one value a partition."""
    return in_sbuf(np.array(values, dtype).reshape(-1, 1))


def run(body: Callable[..., Any], *arrays: Any, cores: int | None = None, **options: Any) -> Any:
    """Run `body` as a kernel on `arrays`, without a grid or on `cores`, under other options if some are given."""
    kernel = nki.jit(body)
    with nkilib.simulator.using(**options):
        return (kernel if cores is None else kernel[cores])(*arrays)


def refused(error: type[BaseException], action: Callable[[], Any]) -> str:
    """The message of the error that `action()` raises, which must be of that very class."""
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    return without_where(str(caught.value))


def in_time(action: Callable[[], Any]) -> BaseException | None:
    """Run `action` in a thread of its own and return what it raised; fail if it does not end."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    before = threading.active_count()
    thread.start()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive(), "the launch hangs"
    assert threading.active_count() == before, "a core is left behind"
    return raised[0] if raised else None


def error_of_cores(body: Callable[[], Any]) -> BaseException:
    """The exception with which `body()` ends on two cores; fails if it hangs, or ends without one."""
    error = in_time(lambda: run(body, cores=2, uninitialized="error"))
    assert error is not None
    return error


def without_place(message: str, function: str) -> str:
    """The message of an error after `file:line: function: `, where the file must be one of these tests."""
    place, _, rest = message.partition(f": {function}: ")
    file, _, line = place.rpartition(":")
    assert Path(__file__).parent in Path(file).parents and line.isdigit()
    return rest


def without_line(message: str, core: int | None = None) -> str:
    """The message of an error after `file:line: `, or `file:line: core <core>: `; the file must be one of these tests.

    For errors of views and of functions of the language, which name no instruction.
    """
    place, _, rest = message.partition(": ")
    file, _, line = place.rpartition(":")
    assert Path(__file__).parent in Path(file).parents and line.isdigit()
    if core is None:
        return rest
    assert rest.startswith(f"core {core}: ")
    return rest.removeprefix(f"core {core}: ")


def fetched(make_view: View, array: Any, index: Sequence[int], dtype: Any = np.int32, **options: Any) -> Any:
    """Return what a DMA reads through `make_view(array, index)`."""

    def kernel(source: Any, index_hbm: Any) -> Any:
        view = make_view(source, load(index_hbm))
        result = nl.ndarray(view.shape, view.dtype, nl.shared_hbm)
        nisa.dma_copy(result, view)
        return result

    return run(kernel, array, np.array(index, dtype).reshape(-1, 1), **options)


def stored(make_view: View, array: Any, index: Sequence[int], values: Any) -> Any:
    """`array` after a DMA wrote `values` through `make_view(array, index)`."""

    def kernel(target: Any, index_hbm: Any, source: Any) -> Any:
        nisa.dma_copy(make_view(target, load(index_hbm)), source)
        return target

    return run(kernel, array, np.array(index, np.int32).reshape(-1, 1), values)
