# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Computations of a kernel from shapes alone, outside of a launch, for any core."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.nki import nisa, nl
from nkilib.simulator import spec

TYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}


@contextmanager
def on_core(core: int, cores: int) -> Iterator[None]:
    """``nl.program_id`` and ``nl.num_programs`` are these, so that a plan is computed as in a kernel."""
    with (
        patch.object(nl, "program_id", lambda axis=0: core),
        patch.object(nl, "num_programs", lambda axes=0: cores),
        patch.object(nisa, "get_nc_version", lambda: nisa.nc_version.gen3),
    ):
        yield


class _Reached(Exception):
    """A function is called, with these arguments or with this result."""


def arguments_of(where: str, kernel: Any, **inputs: Any) -> tuple[Any, ...]:
    """Return the arguments with which a kernel that has checked and planned a launch calls ``where``.

    The function ``where`` is given by its full name. Tensors are :func:`nkilib.simulator.spec`; nothing is
    computed. Call this under :func:`on_core`.
    """

    def stop(*arguments: Any) -> None:
        raise _Reached(arguments)

    return tuple(_reached(where, stop, kernel, inputs))


def result_of(where: str, kernel: Any, **inputs: Any) -> Any:
    """Return the result that the function ``where`` gives the kernel, as :func:`arguments_of` does its arguments."""
    function = pkgutil.resolve_name(where)

    def stop(*arguments: Any, **named: Any) -> None:
        raise _Reached(function(*arguments, **named))

    return _reached(where, stop, kernel, inputs)


def _reached(where: str, stop: Any, kernel: Any, arguments: dict[str, Any]) -> Any:
    def allocated(shape: tuple[int, ...], dtype: Any, **_: Any) -> Any:
        return spec(tuple(shape), dtype)

    with patch(where, stop), patch.object(nl, "ndarray", allocated):
        try:
            kernel.__wrapped__(**arguments)
        except _Reached as reached:
            return reached.args[0]
    raise AssertionError(f"the kernel did not call {where}")


def assert_within(what: str, came: Any, exact: Any, bound: Any) -> None:
    """Every number is as far from the reference as its bound at most."""
    worst = error_over_bound(np.asarray(came), np.asarray(exact), np.asarray(bound)).max()
    assert worst <= 1.0, f"{what}: the worst error is {worst:.3g} times its bound"


def count_class(count: int) -> str:
    """``"none"``, ``"one"`` or ``"several"``."""
    return ("none", "one")[count] if count < 2 else "several"


def cut_class(count: int, is_ragged: bool) -> str:
    """``"one"``, or whether the last one of several is as large as the others."""
    if count < 2:
        return count_class(count)
    return "several, the last one ragged" if is_ragged else "several"
