# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments other than plain arrays: arrays of packed types, containers, and tensors that autograd tracks.

Containers: what is rebuilt, in arguments and results, and how paths name the leaves. Tensors: autograd sees what a
launch writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl, replayable
from nkilib.simulator import ArgumentTypeError, NkiValidationError, packed
from nkilib.simulator.engines.tensor.mx import dequantize, quantize
from nkilib.simulator.launch.arguments import map_leaves
from nkilib.simulator.terms.dtypes import as_dtype
from tests.fresh_python import run_fresh
from tests.simulator.frame import refused, run, without_place
from tests.simulator.kernels import store
from tests.simulator.launch.test_arguments import copy_of, fill_one
from tests.torch_types import named_type

E4M3, E5M2, E2M1 = nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4
WORDS = np.arange(24, dtype=np.uint32).reshape(4, 6) * 0x01010101


def copied(x: Any) -> Any:
    """Make an HBM tensor of the type and with the elements of ``x``, in a kernel."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, x)
    return result


@pytest.mark.parametrize(
    ("array", "dtype"),
    [(WORDS, E4M3), (WORDS, E5M2), (WORDS.astype(np.uint16), E2M1), (WORDS[:, ::2], E4M3), (WORDS.T, E5M2)],
    ids=["e4m3", "e5m2", "e2m1", "strided", "transposed"],
)
def test_a_packed_array_is_a_tensor_of_its_type_and_comes_back_in_kind(array: Any, dtype: Any) -> None:
    seen = []

    def kernel(x: Any) -> Any:
        seen.append((x.dtype, x.shape))
        return copied(x)

    view = array.view(nkilib.simulator.packed(array.copy(), dtype).dtype)
    result = run(kernel, view, uninitialized="error")
    assert seen == [(dtype, array.shape)]
    assert result.dtype == view.dtype
    assert np.array_equal(result.view(dtype.numpy), array)


def test_a_result_without_a_packed_argument_is_its_words() -> None:
    result = run(lambda x: copied(x.view(E4M3)), WORDS)
    assert result.dtype == np.uint32 and np.array_equal(result, WORDS)


def test_a_result_of_another_packed_type_is_packed_too() -> None:
    def kernel(x: Any) -> Any:
        return copied(x.view(nl.uint32).view(E5M2))

    result = run(kernel, packed(WORDS, E4M3))
    assert as_dtype(result.dtype) == E5M2 and np.array_equal(result.view(np.uint32), WORDS)


def test_a_packed_argument_that_the_kernel_writes_is_updated() -> None:
    def kernel(x: Any) -> None:
        nisa.dma_copy(x[0:1], x[1:2])

    for words in WORDS.copy(), np.asfortranarray(WORDS):  # the second one is copied in and out
        run(kernel, words.view(packed(WORDS, E4M3).dtype))
        assert np.array_equal(words[0], WORDS[1]) and np.array_equal(words[1:], WORDS[1:])


def test_types_that_somebody_else_has_made_go_by_their_names() -> None:
    """AWS's ``neuron_dtypes`` gives numpy types of these names; another structure is nobody's."""
    swapped = WORDS.astype(">u4").view([("float8_e4m3fn_x4", ">u4")])
    assert np.array_equal(run(copied, swapped).view(">u4"), WORDS)
    assert as_dtype(np.dtype([("float8_e4m3fn_x4", "V4")])) is E4M3
    for other in [("float8_e4m3fn_x4", "<u2")], [("float32", "<f4")], [("float8_e4m3fn_x4", "<u4"), ("b", "<u4")]:
        with pytest.raises(TypeError, match="dtype must be an NKI data type"):
            as_dtype(np.dtype(other))


def test_a_shape_of_a_packed_type_is_enough() -> None:
    """Arrays beside a spec count by shape and type."""
    seen = []
    kernel = nki.jit(lambda x, y: seen.append(x.dtype))
    kernel(packed(WORDS, E5M2), nkilib.simulator.spec((2, 2), nl.float32))
    assert seen == [E5M2]


def test_elements_make_words_with_the_first_in_the_lowest_bits() -> None:
    eights = np.array([[1, 2, -1, 0.5, 4, 0, 0, 8]])
    for dtype, element in (E4M3, ml_dtypes.float8_e4m3fn), (E5M2, ml_dtypes.float8_e5m2):
        elements = eights.astype(element)
        words = packed(elements, dtype)
        assert words.shape == (1, 2) and np.shares_memory(words, elements)
        assert words.view(np.uint32)[0, 0] & 0xFF == elements.view(np.uint8)[0, 0]
    fours = packed(eights.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn), E2M1)
    assert [hex(word) for word in fours.view(np.uint16)[0]] == ["0x1a42", "0x7006"]
    nibbles = np.array([[0x42, 0x1A, 0x06, 0x70]], np.uint8)  # two elements a byte, as a tutorial of NKI has them
    assert np.array_equal(packed(nibbles, E2M1), fours)


def test_quantised_weights_go_into_a_matrix_product() -> None:
    rng = np.random.default_rng(0)
    (stationary, scales), (moving, moving_scales) = (
        quantize(rng.standard_normal((32, 4 * columns)).astype(np.float32), E4M3) for columns in (6, 3)
    )

    def kernel(stationary: Any, scales: Any, moving: Any, moving_scales: Any) -> Any:
        tiles = [nl.load(tensor) for tensor in (stationary, moving)]
        of_scales = [nl.ndarray((32, tensor.shape[1]), nl.uint8, nl.sbuf) for tensor in (stationary, moving)]
        for tile, source in zip(of_scales, (scales, moving_scales), strict=True):
            nisa.dma_copy(tile[0:4], source)
        product = nl.ndarray((6, 4), nl.float32, nl.psum)
        nisa.nc_matmul_mx(product[:, 0:3], *tiles, *of_scales)
        return store(product[:, 0:3])

    arguments = packed(stationary, E4M3), scales, packed(moving, E4M3), moving_scales
    product = nki.jit(kernel, platform_target="trn3")(*arguments)
    expected = np.einsum("kiq,kjq->ij", dequantize(stationary, E4M3, scales), dequantize(moving, E4M3, moving_scales))
    np.testing.assert_allclose(product, expected, rtol=2**-23)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: packed(WORDS, nl.float32), "dtype must be a packed type, such as nl.float8_e4m3fn_x4, got"),
        (
            TypeError,
            lambda: packed([[1, 2]], E4M3),
            "array must be a numpy array, got [[1, 2]]; numpy.asarray makes one",
        ),
        (TypeError, lambda: packed(WORDS.astype(np.float32), E4M3), "must be of float8_e4m3fn or unsigned integers"),
        (TypeError, lambda: packed(WORDS.astype(ml_dtypes.float8_e5m2), E4M3), "got float8_e5m2"),
        (ValueError, lambda: packed(np.zeros((2, 6), np.uint8), E4M3), "[2, 6] uint8 makes no whole float8_e4m3fn_x4"),
        (ValueError, lambda: packed(np.zeros((2, 6), ml_dtypes.float4_e2m1fn), E2M1), "makes no words of 4 elements"),
        (ValueError, lambda: packed(np.zeros((), np.uint32), E4M3), "makes no whole float8_e4m3fn_x4"),
    ],
)
def test_arrays_that_cannot_be_packed(error: type[Exception], make: Callable[[], Any], message: str) -> None:
    assert message in refused(error, make)


@pytest.mark.parametrize("dtype", [np.dtype([("words", np.uint32)]), ml_dtypes.float4_e2m1fn], ids=str)
def test_words_of_an_unknown_name_are_sent_to_packed(dtype: Any) -> None:
    message = refused(ArgumentTypeError, lambda: run(copied, np.zeros((2, 4), dtype)))
    assert message.endswith("; make words of a packed type with nkilib.simulator.packed(array, dtype)")


def test_install_lets_numpy_know_the_names() -> None:
    """Code for Neuron machines relies on it, where numpy learns them from AWS's package."""
    outcome = run_fresh("""
import numpy as np
import nkilib.simulator
nkilib.simulator.install()
import nki.language as nl
made = np.zeros((2, 3), dtype=nl.float8_e4m3fn_x4)
viewed = np.zeros((2, 12), np.uint8).view(nl.float8_e4m3fn_x4)
print(made.dtype == viewed.dtype, viewed.shape, "x4" in str(made.dtype), np.zeros(2, nl.float4_e2m1fn_x4).itemsize)
""")
    assert (outcome.error, outcome.output) == ("", "True (2, 3) True 2")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Settings(nl.NKIObject):
    sizes: Any
    rate: Any = 3


@dataclass(frozen=True)
class Inner(nl.NKIObject):
    array: Any


class Outer(nl.NKIObject):
    inner: Any
    number: int = 3


def paths(value: Any) -> Any:
    """Every leaf replaced by its path."""
    return map_leaves(value, "x", lambda leaf, path: path)


def test_a_leaf_is_given_to_the_function_itself() -> None:
    seen: list[Any] = []
    assert map_leaves(7, "x", lambda leaf, path: seen.append((leaf, path))) is None
    assert seen == [(7, "x")]


def test_containers_keep_their_kinds() -> None:
    assert paths((1, [2, 3])) == ("x[0]", ["x[1][0]", "x[1][1]"])
    assert paths({"a": 1, 2: (3,)}) == {"a": "x['a']", 2: ("x[2][0]",)}
    assert paths(Pair(1, [2])) == Pair("x[0]", ["x[1][0]"])
    assert isinstance(paths(Pair(1, 2)), Pair)


def test_objects_are_copied_frozen_ones_too() -> None:
    settings = Settings([1, 2])
    rebuilt = paths(settings)
    assert rebuilt == Settings(["x.sizes[0]", "x.sizes[1]"], "x.rate")
    assert settings == Settings([1, 2], 3)


def test_tensors_strings_and_types_are_leaves() -> None:
    tensor = nl.NkiTensor((2, 3), nl.float32, None)
    seen: list[Any] = []
    map_leaves([tensor, "text", nl.bfloat16, None], "x", lambda leaf, path: seen.append(leaf))
    assert seen[0] is tensor
    assert seen[1:] == ["text", nl.bfloat16, None]


def test_arrays_are_found_in_nested_containers_and_objects() -> None:
    a, b, c, d, e = (np.full((1, 2), value, np.float32) for value in range(5))

    def kernel(items: Any, table: Any, outer: Any, pair: Any, *rest: Any) -> Any:
        assert outer.number == 4 and type(outer) is Outer and type(outer.inner) is Inner
        tensors = [items[0], items[1][0], table["k"][0], outer.inner.array, pair.right]
        names = ["items[0]", "items[1][0]", "table['k'][0]", "outer.inner.array", "pair[1]"]
        assert [tensor.name for tensor in tensors] == names
        assert pair.left is None and rest == ("x", 2)
        return {"all": [copy_of(tensor) for tensor in tensors], "pair": Pair(tensors[1], (tensors[0], 7))}

    outer = Outer(Inner(d), 4)
    results = run(kernel, [a, (b,)], {"k": [c]}, outer, Pair(None, e), "x", 2)
    assert [int(array[0, 0]) for array in results["all"]] == [0, 1, 2, 3, 4]
    assert type(results["pair"]) is Pair and results["pair"].left is b
    assert results["pair"].right[0] is a and results["pair"].right[1] == 7
    assert outer.inner.array is d, "the caller's object stays as it was"


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        (np.bool_(True), True),
        (np.int8(-3), -3),
        (np.int64(2**40), 2**40),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float16(0.5), 0.5),
        (np.float32(0.1), 0.10000000149011612),  # the nearest float32, in double precision
        (np.float64(0.1), 0.1),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}",
)
def test_numpy_scalars_become_numbers_of_python(scalar: Any, expected: Any) -> None:
    seen: list[Any] = []

    def kernel(number: Any, items: Any, table: Any, outer: Any, pair: Any, *rest: Any, last: Any = None) -> Any:
        seen.extend([number, items[0], items[1][0], table["k"], outer.inner.array, pair.right, rest[0], last])
        return number

    outer = Outer(Inner(scalar), 4)
    arguments = (scalar, [scalar, (scalar,)], {"k": scalar}, outer, Pair(None, scalar), scalar)
    returned = nki.jit(kernel)(*arguments, last=scalar)
    assert all(type(value) is type(expected) and value == expected for value in [*seen, returned]) and len(seen) == 8
    assert outer.inner.array is scalar, "the caller's object stays as it was"


def test_tensors_inside_a_returned_object_are_results_too() -> None:
    class Outcome(nl.NKIObject):
        doubled: Any
        label: str = "x2"

    def kernel(x: Any) -> Any:
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        doubled = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(doubled, tile)
        return Outcome(doubled)

    outcome = run(kernel, np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(outcome.doubled, [[0, 2, 4], [6, 8, 10]])
    assert outcome.label == "x2"


GRADIENT_TYPES = ["torch.float32", "torch.float16", "torch.bfloat16"]


@pytest.mark.parametrize("dtype", GRADIENT_TYPES, ids=str)
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x[:, ::2], lambda x: x * 1], ids=["leaf", "view", "computed"])
@pytest.mark.parametrize("precise_fp", [True, False])
def test_a_tensor_that_requires_grad_can_be_read_and_not_written(dtype: Any, make: Any, precise_fp: bool) -> None:
    import torch

    leaf = torch.zeros(3, 4, dtype=named_type(dtype), requires_grad=True)
    x = make(leaf)
    assert run(copy_of, x, precise_fp=precise_fp).tolist() == x.tolist()
    message = refused(NkiValidationError, lambda: run(fill_one, x, precise_fp=precise_fp))
    assert without_place(message, "nisa.dma_copy") == (
        f"operand 'dst': tensor 'x' {list(x.shape)} {str(dtype).removeprefix('torch.')} in private_hbm is a read-only "
        "input and cannot be written: pass a writable array, or a torch tensor that does not require grad (.detach())"
    )
    assert not x.any() and x._version == 0
    # As the message says; the values are the same memory.
    assert run(fill_one, x.detach(), precise_fp=precise_fp).tolist() == torch.ones(x.shape).tolist() == x.tolist()


def test_a_tensor_that_requires_grad_and_is_returned_is_the_callers() -> None:
    import torch

    x = torch.zeros(3, 4, requires_grad=True)
    assert run(lambda x: x, x) is x


@nki.jit
@replayable
def set_to_one(x: Any) -> None:
    fill_one(x)


@nki.jit
def only_read(x: Any) -> Any:
    return copy_of(x)


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[1], lambda x: x[:, ::2], lambda x: x.detach()])
def test_a_write_to_a_saved_tensor_is_found_by_the_backward_pass(part: Any) -> None:
    """Also where the launch is replayed, and through a view."""
    import torch

    x, weight = torch.full((2, 8), 3.0), torch.ones(2, 8, requires_grad=True)
    for _ in range(6):
        loss = (weight * x).sum()
        only_read(part(x))
        loss.backward(retain_graph=True)
        set_to_one(part(x))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert x._version == 6 and weight.grad is not None and weight.grad[0, 1].item() > 6


def test_launches_that_write_are_replayed_and_counted_by_autograd() -> None:
    import torch

    x = torch.zeros(2, 8)
    before = replays(set_to_one)
    for launches in range(1, 9):
        set_to_one(x)
        assert x._version == launches
    assert replays(set_to_one) - before >= 2 and x.tolist() == [[1] * 8] * 2


def replays(kernel: Any) -> int:
    counts = nkilib.simulator.replay_counts().kernels.get(kernel.__name__)
    return 0 if counts is None else counts.replayed


def test_a_write_before_an_error_is_counted_too() -> None:
    import torch

    def kernel(x: Any) -> None:
        fill_one(x)
        raise KeyError

    x = torch.zeros(2, 8)
    with pytest.raises(KeyError):
        run(kernel, x)
    assert x._version == 1


def test_a_write_through_detach_counts_for_the_tensor_that_requires_grad() -> None:
    import torch

    x = torch.full((2, 8), 3.0, requires_grad=True)
    loss = (x**2).sum()
    set_to_one(x.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert x.tolist() == [[1] * 8] * 2


def test_tensors_of_inference_mode_are_written_and_have_no_count() -> None:
    import torch

    ordinary = torch.zeros(2, 8)
    with torch.inference_mode():
        x = torch.zeros(2, 8)
        set_to_one(x)
        set_to_one(ordinary)
    set_to_one(x)
    assert x.tolist() == [[1] * 8] * 2 and ordinary._version == 1
    with pytest.raises(RuntimeError, match="Inference tensors do not track version counter"):
        _ = x._version
