# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.host.sized_loss``: the tensors of a launch, from what a row says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nkilib.core.host.sized_loss import SCALAR, TensorSize, launch_tensors, sized_launch, tensor_bytes
from nkilib.nki import nl
from nkilib.simulator import spec


def kernel(
    input_hbm: nl.NkiTensor,
    targets_hbm: nl.NkiTensor,
    weight_hbm: nl.NkiTensor | None = None,
    total_hbm: nl.NkiTensor | None = None,
    p: int = 1,
) -> None:
    """Tensors, optional ones among them, and an option."""


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Targets are classes, and as many a row as the option says."""
    if tensor == "targets":
        return TensorSize((shape[0], options.get("p", 1)), "int32")
    return TensorSize(shape) if tensor == "input" else SCALAR


def test_optional_tensors_are_none_but_for_those_that_a_launch_always_has() -> None:
    tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, (4, 7), {}), "bfloat16", always=("total",))
    assert list(tensors) == ["input_hbm", "targets_hbm", "weight_hbm", "total_hbm"]
    assert tensors["weight_hbm"] is None
    expected = {"input": ((4, 7), "bfloat16"), "targets": ((4, 1), "int32"), "total": ((1,), "float32")}
    for name, (shape, dtype) in expected.items():
        result = tensors[f"{name}_hbm"]
        assert (tuple(result.shape), str(result.dtype)) == (shape, str(spec(shape, dtype).dtype))


def test_a_modelled_launch_has_the_type_that_is_asked_for_and_the_options() -> None:
    launch = sized_launch("backward, mean, p = 2", kernel, (1.1, 1.2), size_of, (4, 7), p=2)
    assert not launch.forward and launch.bound == {"bfloat16": 1.1, "float32": 1.2}
    arguments = launch.arguments("float32")
    assert arguments["p"] == 2 and arguments["total_hbm"] is None
    assert str(arguments["input_hbm"].dtype) == str(spec((1,), "float32").dtype)
    assert tuple(arguments["targets_hbm"].shape) == (4, 2)
    assert sized_launch("forward", kernel, (1.0, 1.0), size_of, (4, 7)).forward


def test_bytes_are_those_of_all_tensors_that_are_there() -> None:
    assert tensor_bytes(spec((4, 7), "bfloat16"), None, spec((3,), "float32")) == 4 * 7 * 2 + 3 * 4
