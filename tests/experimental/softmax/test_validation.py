"""What the kernels refuse: by name, before anything is written, with what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.softmax import choose_softmax_tiling
from nkilib.nki import nl
from tests.experimental.softmax.row_checks import KERNELS

_X = np.ones((3, 4), np.float32)
_WHOLE = np.ones((3, 4), np.int32)
_DEEP = np.ones((1,) * 9, np.float32)

OF_ALL: dict[str, tuple[dict[str, Any], str]] = {
    "axis too large": ({"axis": 2}, r"axis must be from -2 to 1 for shape \(3, 4\), got 2"),
    "axis too small": ({"axis": -3}, "axis must be from -2 to 1"),
    "axis no integer": ({"axis": 0.5}, "axis must be an integer, got 0.5"),
    "axis a flag": ({"axis": True}, "axis must be an integer, got True"),
    "another type": ({"dtype": nl.int32}, "dtype must be nl.bfloat16, nl.float16 or nl.float32, got"),
    "no chunk": ({"chunk_size": 0}, "chunk_size must be an integer from 1 to 65535 or None, got 0"),
}
OF_BACKWARD: dict[str, tuple[dict[str, Any], str]] = {
    "in place of another type": ({"inplace": True, "dtype": nl.bfloat16}, "pass inplace=False"),
    "a number for a flag": ({"inplace": 3}, "inplace must be True or False, got 3"),
    "another shape": ({"output_hbm": np.ones((4, 3), np.float32)}, "grad_hbm must have the shape of output_hbm"),
    "integers for output": ({"output_hbm": _WHOLE}, r"as \.float\(\) does in PyTorch"),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("case", [*OF_ALL, *OF_BACKWARD, "integers", "deep"])
def test_refused(kernel: Any, case: str) -> None:
    names = ("grad_hbm", "output_hbm") if kernel.is_backward else ("x_hbm",)
    arguments: dict[str, Any] = {name: _X.copy() for name in names}
    if case in OF_BACKWARD and not kernel.is_backward:
        return
    further = {"integers": _WHOLE, "deep": _DEEP}
    if case in further:
        arguments = {name: further[case] for name in names}
        message = r"\.float\(\)" if case == "integers" else f"{names[0]} must have 1 to 8 dimensions"
    else:
        changed, message = {**OF_ALL, **OF_BACKWARD}[case]
        arguments |= changed
    before = arguments[names[0]].copy()
    with pytest.raises(AssertionError, match=message) as error:
        kernel.function[2](**arguments)
    assert kernel.name in str(error.value)
    assert (arguments[names[0]] == before).all()


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_float64_is_refused_with_the_remedy(kernel: Any) -> None:
    wide = [np.ones((3, 4))] * (2 if kernel.is_backward else 1)
    with pytest.raises(TypeError, match="no type float64; cast it to float32"):
        kernel.function[2](*wide)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3, 4), 2, "float32", "forward"), "axis must be from -2 to 1"),
        (((), 0, "float32", "forward"), "shape must have 1 to 8 sizes"),
        (((3, 4), 0, "float64", "forward"), "dtype must be bfloat16, float16 or float32"),
        (((3, 4), 0, "float32", "sideways"), "direction must be"),
    ],
)
def test_a_tiling_of_what_no_kernel_takes(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_softmax_tiling(*arguments)
