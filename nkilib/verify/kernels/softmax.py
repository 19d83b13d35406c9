# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cases of the kernels of softmax and log-softmax, along the last axis and along another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from nkilib.experimental.softmax import (
    host,
    log_softmax_backward,
    log_softmax_forward,
    softmax_backward,
    softmax_forward,
)
from nkilib.nki import nl
from nkilib.verify.kernels import inputs
from nkilib.verify.kernels.case import Case, Reference, References
from nkilib.verify.step import Array

# Rows of several pieces, and a second batch; short rows, several of a partition; a row on several partitions.
_LAST_AXIS: Final = ((130, 4100), (700, 100), (2, 40003))
# Rows that are spread over partitions that would be idle.
_FEW_ROWS: Final = (5, 4100)
# Columns of several segments; columns that the DMA engines transpose, of 16-bit types; short ones, not transposed.
_MIDDLE: Final = ((2, 300, 140), (2, 130, 256), (2, 21, 700))


@dataclass(frozen=True)
class _Kernel:
    """One of the softmax kernels, with its float64 reference and the bound on its errors.

    ``of_forward`` is None for a forward kernel. For a backward kernel it is the reference of the forward, which makes
    the output that the backward takes.
    """

    function: Any
    reference: Callable[..., Any]
    bound: Callable[..., Any]
    of_forward: Callable[..., Any] | None

    def arguments(self, type_name: str, shape: tuple[int, ...], **options: Any) -> dict[str, Any]:
        axis, dtype = options.get("axis", -1), inputs.TYPES[type_name][0]
        x = 3.0 * inputs.numbers(21, *shape)
        if self.of_forward is None:
            return {"x_hbm": x.astype(dtype), **options}
        output = self.of_forward(x, axis).astype(dtype)
        return {"grad_hbm": inputs.numbers(22, *shape).astype(dtype), "output_hbm": output, **options}

    def references(self, arguments: Mapping[str, Any]) -> References:
        arrays: list[Array] = [arguments[name] for name in ("x_hbm", "grad_hbm", "output_hbm") if name in arguments]
        axis = arguments.get("axis", -1)
        dtype = np.float32 if "dtype" in arguments else arrays[0].dtype
        return {"result": Reference(self.reference(*arrays, axis), self.bound(*arrays, axis, dtype))}

    def case(self, name: str, type_name: str, shape: tuple[int, ...], cores: int, **options: Any) -> Case:
        return Case(
            f"{self.function.__name__}: {name}, {type_name}",
            False,
            (int(np.prod(shape[:-1])), shape[-1]),
            self.function,
            partial(self.arguments, type_name, shape, **options),
            ("result",),
            self.references,
            cores,
            "grad_hbm" if options.get("inplace") else None,
        )


_KERNELS: Final = (
    _Kernel(softmax_forward, host.softmax_reference, host.softmax_bound, None),
    _Kernel(log_softmax_forward, host.log_softmax_reference, host.log_softmax_bound, None),
    _Kernel(
        softmax_backward,
        host.softmax_backward_reference,
        host.softmax_backward_bound,
        host.softmax_reference,
    ),
    _Kernel(
        log_softmax_backward,
        host.log_softmax_backward_reference,
        host.log_softmax_backward_bound,
        host.log_softmax_reference,
    ),
)


def cases() -> Iterator[Case]:
    """Yield every launch of this module."""
    for type_name in inputs.TYPES:
        for kernel in _KERNELS:
            for number, shape in enumerate(_LAST_AXIS):
                yield kernel.case(f"last axis of {shape[1]}", type_name, shape, 1 + (number + 1) % 2)
            for middle in _MIDDLE:
                yield kernel.case(f"middle axis of {middle[1]}", type_name, middle, 2, axis=1)
            options = {"dtype": nl.float32, "chunk_size": 40}
            yield kernel.case("float32 result, small chunks", type_name, _LAST_AXIS[1], 2, **options)
            options = {"partitions_per_row": 16}
            yield kernel.case("few rows, 16 partitions each", type_name, _FEW_ROWS, 2, **options)
            if kernel.of_forward is not None:
                yield kernel.case("in place", type_name, _LAST_AXIS[1], 2, inplace=True)
