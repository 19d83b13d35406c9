# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.launch.arguments``: numpy arrays and torch tensors in, results in kind out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ArgumentTypeError, NkiValidationError, UninitializedReadError
from tests.simulator.frame import refused, run, without_place
from tests.simulator.kernels import load
from tests.torch_types import named_type

if TYPE_CHECKING:
    import torch

NUMPY_TYPES = [
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    np.int8,
    np.int16,
    np.int32,
    np.uint8,
    np.uint16,
    np.uint32,
    np.bool_,
]
TORCH_TYPES = [
    "torch.float32",
    "torch.float16",
    "torch.bfloat16",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
    "torch.int8",
    "torch.int16",
    "torch.int32",
    "torch.uint8",
    "torch.uint16",
    "torch.uint32",
    "torch.bool",
]


def copy_of(x: Any) -> Any:
    """A kernel: a new tensor with the values of x; one of the cores copies them."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.dma_copy(result, x)
    return result


def fill_one(x: Any) -> Any:
    """A kernel: writes 1 into x, and returns it."""
    nisa.dma_copy(x, nl.full((1, x.size), 1, x.dtype))
    return x


def address(array: Any) -> int:
    """Where the memory of a numpy array or torch tensor starts."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data_ptr()


def bits(array: Any) -> Any:
    """The bytes of a numpy array or torch tensor, as a list."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).tolist()
    import torch

    return array.contiguous().view(torch.uint8).flatten().tolist()


def numpy_input(dtype: Any) -> Any:
    return (np.arange(12) % 2).reshape(3, 4).astype(dtype)


def torch_zeros(*shape: int) -> torch.Tensor:
    import torch

    return torch.zeros(shape)


def torch_input(dtype: str) -> torch.Tensor:
    import torch

    return (torch.arange(12) % 2).reshape(3, 4).to(named_type(dtype))


@pytest.mark.parametrize("dtype", NUMPY_TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("cores", [1, 2])
def test_numpy_in_numpy_out(dtype: Any, cores: int) -> None:
    x = numpy_input(dtype)
    result = run(copy_of, x, cores=cores)
    assert type(result) is np.ndarray and bits(result) == bits(x)
    # A boolean is held as uint8.
    assert result.dtype == (np.uint8 if dtype is np.bool_ else dtype)
    assert not np.shares_memory(result, x)


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
@pytest.mark.parametrize("cores", [1, 2])
def test_torch_in_torch_out(dtype: str, cores: int) -> None:
    import torch

    x = torch_input(dtype)
    result = run(copy_of, x, cores=cores)
    assert isinstance(result, torch.Tensor) and bits(result) == bits(x)
    assert result.dtype == (torch.uint8 if dtype == "torch.bool" else named_type(dtype))


def test_bits_pass_unchanged() -> None:
    import torch

    x = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16).reshape(64, 1024)
    assert bits(run(copy_of, x)) == bits(x)
    t = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    assert bits(run(copy_of, t)) == bits(t)


def test_one_torch_tensor_among_the_arguments_makes_all_results_torch() -> None:
    import torch

    def kernel(x: Any, y: Any) -> Any:
        return [copy_of(x), copy_of(y), nl.zeros((2,), nl.bfloat16, nl.hbm)]

    results = run(kernel, np.ones(3, np.float32), {"y": torch.ones(2)}["y"])
    assert [type(result) for result in results] == [torch.Tensor] * 3
    assert results[2].dtype == torch.bfloat16


def test_without_arrays_results_are_numpy() -> None:
    assert type(run(lambda: nl.zeros((2,), nl.float32, nl.hbm))) is np.ndarray


def test_a_result_for_which_torch_has_no_type_is_refused() -> None:
    import torch

    def kernel(x: Any, dtype: Any) -> Any:
        return nl.zeros((2,), dtype, nl.hbm)

    message = refused(NkiValidationError, lambda: run(kernel, torch.ones(2), nl.float8_e4m3))
    assert message == (
        "the kernel returns a tensor of float8_e4m3, which torch has no type for; return another type, or pass numpy "
        "arrays instead of torch tensors"
    )
    assert run(kernel, torch.ones(2), nl.float8_e4m3fn).dtype == torch.float8_e4m3fn
    assert run(kernel, np.ones(2, np.float32), nl.float8_e4m3).dtype == ml_dtypes.float8_e4m3


def test_gradients_are_not_followed() -> None:
    import torch

    x = torch.ones(3, requires_grad=True)
    result = run(copy_of, x)
    assert not result.requires_grad and result.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", NUMPY_TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_dense_array_is_not_copied_and_is_written_in_place(dtype: Any) -> None:
    x = numpy_input(dtype)

    def kernel(x: Any) -> Any:
        assert address(x.array) == inputs
        return fill_one(x)

    inputs = address(x)
    result = run(kernel, x)
    assert result is x and (x.astype(np.float32) == 1).all()


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
def test_a_dense_torch_tensor_is_not_copied_and_is_written_in_place(dtype: str) -> None:
    x = torch_input(dtype)

    def kernel(x: Any) -> Any:
        assert address(x.array) == inputs
        return fill_one(x)

    inputs = address(x)
    result = run(kernel, x)
    assert result is x and x.float().tolist() == [[1] * 4] * 3


LAYOUTS: list[Callable[[Any], Any]] = [
    lambda x: x[:, ::2],
    lambda x: x[1:, 1:3],
    lambda x: x.T,
    lambda x: x[::2],
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [lambda: np.zeros((4, 6), np.float32), lambda: torch_zeros(4, 6)])
def test_a_strided_input_is_written_back(make: Any, layout: Any) -> None:
    whole, expected = make(), make()
    part = layout(whole)
    layout(expected)[...] = 1
    assert run(fill_one, part) is part
    assert bits(whole) == bits(expected)


def test_a_strided_input_is_read_as_it_is() -> None:
    import torch

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for layout in LAYOUTS:
        np.testing.assert_array_equal(run(copy_of, layout(x)), layout(x))
        np.testing.assert_array_equal(run(copy_of, layout(torch.from_numpy(x))).numpy(), layout(x))
    np.testing.assert_array_equal(run(copy_of, x[::-1, ::-1]), x[::-1, ::-1])
    np.testing.assert_array_equal(run(copy_of, np.broadcast_to(x[0], (3, 6))), x[[0, 0, 0]])


def test_elements_of_a_strided_input_that_the_kernel_did_not_write_keep_their_bits() -> None:
    whole = np.arange(24, dtype=np.uint32).reshape(4, 6) + np.uint32(0x7FC00000)  # NaNs of all sorts
    x = whole.view(np.float32)[:, ::2]

    def kernel(x: Any) -> None:
        nisa.dma_copy(x[0], nl.zeros((1, 3), x.dtype))

    expected = whole.copy()
    expected[0, ::2] = 0
    run(kernel, x)
    np.testing.assert_array_equal(whole, expected)


def test_another_byte_order_is_converted_and_written_back() -> None:
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    np.testing.assert_array_equal(run(copy_of, x), np.arange(6, dtype=np.float32).reshape(2, 3), strict=True)
    assert run(fill_one, x) is x
    assert x.dtype == ">f4" and (x == 1).all()


def test_what_was_written_before_an_error_is_there() -> None:
    def kernel(x: Any) -> None:
        fill_one(x)
        raise KeyError

    for x in (np.zeros((2, 3), np.float32), np.zeros((2, 6), np.float32)[:, ::2]):
        with pytest.raises(KeyError):
            run(kernel, x)
        assert (x == 1).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_arrays_without_dimensions_or_elements(shape: tuple[int, ...]) -> None:
    import torch

    def kernel(x: Any) -> Any:
        assert x.shape == shape
        return x

    for x in (np.ones(shape, np.float32), torch.ones(shape), np.ones(shape, ">i2")):
        for precise_fp in (True, False):
            assert run(kernel, x, precise_fp=precise_fp) is x


@pytest.mark.parametrize("precise_fp", [True, False])
def test_an_array_without_dimensions_is_written_in_place(precise_fp: bool) -> None:
    import torch

    for x in (np.array(3, ml_dtypes.bfloat16), np.array(3, ">f4"), torch.tensor(3, dtype=torch.bfloat16)):
        assert run(fill_one, x, precise_fp=precise_fp) is x and x == 1


def test_the_same_array_twice_is_one_tensor() -> None:
    import torch

    def kernel(x: Any, y: Any, more: Any) -> Any:
        assert x is y is more[0]
        fill_one(x)
        return y, copy_of(y)

    for x in (np.zeros((2, 3), np.float32), np.zeros((2, 6), np.float32)[:, ::2], torch.zeros(2, 3)):
        returned, copied = run(kernel, x, x, [x])
        assert returned is x and (copied == 1).all() and (x == 1).all()


def test_a_copied_input_that_the_kernel_left_alone_is_not_written_back() -> None:
    whole = np.zeros((2, 6), np.float32)

    def kernel(whole: Any, every_other: Any) -> Any:
        return fill_one(whole)

    assert run(kernel, whole, whole[:, ::2]) is whole and (whole == 1).all()


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "make",
    [
        lambda: read_only(np.zeros((3, 4), np.float32)),
        lambda: read_only(np.zeros((3, 8), np.float32)[:, ::2]),
        lambda: np.broadcast_to(np.float32(0), (3, 4)),
        lambda: read_only(np.zeros((3, 4), ">f4")),
    ],
)
@pytest.mark.parametrize("precise_fp", [True, False])
def test_a_read_only_array_can_be_read_and_not_written(make: Any, precise_fp: bool) -> None:
    x = make()
    np.testing.assert_array_equal(run(copy_of, x, precise_fp=precise_fp), np.zeros((3, 4)))
    message = refused(NkiValidationError, lambda: run(fill_one, x, precise_fp=precise_fp))
    assert without_place(message, "nisa.dma_copy") == (
        "operand 'dst': tensor 'x' [3, 4] float32 in private_hbm is a read-only input and cannot be written: "
        "pass a writable array, or a torch tensor that does not require grad (.detach())"
    )
    assert not x.any()


def test_a_read_only_array_that_is_stored_as_float32_cannot_be_written_either() -> None:
    x = read_only(np.zeros((3, 4), ml_dtypes.bfloat16))
    message = refused(NkiValidationError, lambda: run(fill_one, x, precise_fp=False))
    assert without_place(message, "nisa.dma_copy") == (
        "operand 'dst': tensor 'x' [3, 4] bfloat16 in private_hbm is a read-only input and cannot be written: "
        "pass a writable array, or a torch tensor that does not require grad (.detach())"
    )


def test_low_precision_inputs_are_widened_and_rounded_on_the_way_back() -> None:
    import torch

    def kernel(x: Any) -> Any:
        tile = load(x)
        nisa.tensor_scalar(tile, tile, nl.add, 2.0**-12)
        nisa.dma_copy(x, tile)
        return x, copy_of(x)

    for x in (np.ones((2, 3), ml_dtypes.bfloat16), torch.ones(2, 3, dtype=torch.bfloat16)):
        same, copied = run(kernel, x, precise_fp=False)
        assert same is x and (np.asarray(x.tolist()) == 1).all()
        assert str(copied.dtype).endswith("float32") and (copied == 1 + 2.0**-12).all()
        same, copied = run(kernel, x, precise_fp=True)
        assert copied.dtype == x.dtype and (copied == 1).all()


def test_an_array_without_dimensions_stays_a_tensor() -> None:
    assert run(lambda x: type(x), np.array(3, np.int32)) is nl.NkiTensor


def test_arrays_live_in_private_memory_on_one_core_and_in_shared_memory_on_two() -> None:
    def kernel(x: Any) -> Any:
        return x.buffer

    x = np.zeros((2, 3), np.float32)
    assert [run(kernel, x, cores=cores) for cores in (None, 1, 2)] == [nl.hbm, nl.hbm, nl.shared_hbm]


def test_both_cores_write_one_input() -> None:
    import torch

    def kernel(x: Any) -> Any:
        core = nl.program_id()
        nisa.dma_copy(x[core], nl.full((1, x.shape[1]), core + 1, x.dtype))
        return x

    for x in (np.zeros((2, 3), np.float32), np.zeros((2, 6), np.float32)[:, ::2], torch.zeros(2, 3)):
        assert run(kernel, x, cores=2) is x
        assert x.tolist() == [[1] * 3, [2] * 3]


def test_a_returned_view_of_an_input_shares_its_memory() -> None:
    import torch

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    view = run(lambda x: x[1:3, ::2].permute((1, 0)), x)
    np.testing.assert_array_equal(view, x[1:3, ::2].T)
    assert np.shares_memory(view, x)
    t = torch.zeros(4, 6)
    run(lambda t: t.reshape((24,)), t)[0] = 5
    assert t[0, 0] == 5


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda x: nl.zeros((2, 3), nl.float32),
            "tensors in HBM, got tensor [2, 3] float32 in sbuf; copy it to one in nl.shared_hbm",
        ),
        (
            lambda x: nl.zeros((2, 3), nl.float32, nl.psum),
            "tensors in HBM, got tensor [2, 3] float32 in psum; copy it to one in nl.shared_hbm",
        ),
        (
            lambda x: x.select(0, nl.zeros((1, 1), nl.int32)),
            "tensors at a static address, got tensor 'x' [3] float32 in private_hbm",
        ),
        (
            lambda x: nisa.register_alloc(3),
            "tensors, got VirtualRegister(3), which the device alone knows; nisa.register_store it to a tensor of "
            "nl.shared_hbm and return that",
        ),
        (
            lambda x: nisa.scalar_load(nl.full((1, 1), 3, nl.int32)),
            "tensors, got NkiScalar(3, int32), which the device alone knows; nisa.scalar_store it to a tensor of "
            "nl.shared_hbm and return that",
        ),
    ],
)
def test_a_result_must_be_a_plain_tensor_in_hbm(make: Any, told: str) -> None:
    x = np.zeros((2, 3), np.float32)

    def direct(x: Any) -> Any:
        return make(x)

    def nested(x: Any) -> Any:
        return [x, (make(x),)]

    for kernel in (direct, nested):
        assert refused(NkiValidationError, lambda kernel=kernel: run(kernel, x)) == (  # type: ignore[misc]
            f"{kernel.__name__}: a kernel returns {told}"
        )
    np.testing.assert_array_equal(run(lambda x: x.select(0, 1), x), np.zeros(3))


def test_two_cores_return_shared_tensors_only() -> None:
    """The private HBM of one core is not that of the other one; a single core returns what its own holds."""

    def kernel(buffer: Any, is_part: bool) -> Any:
        made = nl.zeros((2, 3), nl.float32, buffer)
        return {"made": [made[0] if is_part else made]}

    for is_part, item in ((False, "[2, 3]"), (True, "[3]")):
        refusal = refused(NkiValidationError, lambda is_part=is_part: run(kernel, nl.private_hbm, is_part, cores=2))  # type: ignore[misc]
        assert refusal == (
            f"kernel: a kernel on two cores returns tensors in nl.shared_hbm; tensor {item} float32 in private_hbm "
            "belongs to one core"
        )
        for buffer, cores in ((nl.shared_hbm, 2), (nl.private_hbm, 1), (nl.private_hbm, None)):
            assert not run(kernel, buffer, is_part, cores=cores)["made"][0].any()


def test_two_cores_return_inputs_and_views_of_them() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same, row = run(lambda x: (x, x[1]), x, cores=2)
    assert same is x and row.tolist() == [3, 4, 5] and np.shares_memory(row, x)


@pytest.mark.parametrize("as_torch", [False, True])
def test_a_result_that_was_never_written_is_an_error_or_the_sentinel(as_torch: bool) -> None:
    import torch

    def kernel(x: Any, dtype: Any, columns: int) -> Any:
        result = nl.ndarray((2, 3), dtype, nl.shared_hbm)
        if columns:
            nisa.dma_copy(result[:, :columns], nl.full((2, columns), 1, dtype))
        return (result,)

    x = torch.zeros(1) if as_torch else np.zeros(1, np.float32)
    for dtype, sentinel in ((nl.float32, np.nan), (nl.bfloat16, np.nan), (nl.int32, 4)):
        for columns in (0, 2):
            message = refused(
                UninitializedReadError,
                lambda dtype=dtype, columns=columns: run(kernel, x, dtype, columns),  # type: ignore[misc]
            )
            assert message == (
                f"kernel: the kernel returns tensor [2, 3] {dtype} in shared_hbm, of which {6 - 2 * columns} of 6 "
                f"elements were never written"
            )
            (result,) = run(kernel, x, dtype, columns, uninitialized="nan")
            np.testing.assert_array_equal(np.array(result.tolist()), [[1] * columns + [sentinel] * (3 - columns)] * 2)
        (result,) = run(kernel, x, dtype, 3)
        assert (np.array(result.tolist()) == 1).all()


def test_only_the_returned_part_must_be_written() -> None:
    def kernel() -> Any:
        t = nl.ndarray((2, 3), nl.float32, nl.hbm)
        nisa.dma_copy(t[0], nl.ones((1, 3), nl.float32))
        return t[0]

    np.testing.assert_array_equal(run(kernel), np.ones(3))


@pytest.mark.parametrize(
    ("array", "named", "instead", "corrected"),
    [
        (np.zeros(3), "float64", "float32 or bfloat16", np.float32),
        (np.zeros(3, np.uint64), "uint64", "int32", np.int64),
        (np.zeros(3, np.complex64), "complex64", "float32 or bfloat16", np.float32),
        (np.zeros(3, "S2"), "|S2", "float32 or bfloat16", np.uint8),
        (np.zeros(3, object), "object", "float32 or bfloat16", ml_dtypes.bfloat16),
    ],
)
def test_types_that_nki_does_not_have_are_refused(array: Any, named: str, instead: str, corrected: Any) -> None:
    def message(kernel: str, name: str) -> str:
        return f"{kernel}: argument {name!r}: NKI has no type {named}; cast it to {instead}"

    assert refused(ArgumentTypeError, lambda: run(copy_of, array)) == message("copy_of", "x")
    assert refused(ArgumentTypeError, lambda: nki.jit(lambda x: x)({"k": [array]})) == message("<lambda>", "x['k'][0]")
    assert run(copy_of, np.zeros(3, corrected)).dtype == corrected


def test_torch_types_that_nki_does_not_have_are_refused() -> None:
    import torch

    message = refused(ArgumentTypeError, lambda: run(copy_of, torch.zeros(3, dtype=torch.uint64)))
    assert message == "copy_of: argument 'x': NKI has no type uint64; cast it to int32"
    message = refused(ArgumentTypeError, lambda: run(copy_of, torch.zeros(3, dtype=torch.float64)))
    assert message == "copy_of: argument 'x': NKI has no type float64; cast it to float32 or bfloat16"


def test_tensors_of_a_device_are_refused() -> None:
    import torch

    message = refused(ArgumentTypeError, lambda: run(copy_of, torch.zeros(3, device="meta")))
    assert message == "copy_of: argument 'x': the simulator takes CPU tensors, got one on meta; call .cpu()"


class ForeignArray:
    """Like an array of jax: numpy could read it."""

    shape, dtype = (2, 3), np.dtype(np.float32)

    def __array__(self) -> Any:
        raise AssertionError("the kernel's caller converts it")


def test_arrays_of_other_libraries_are_refused_before_the_kernel_runs() -> None:
    kind = f"{__name__}.ForeignArray"
    expected = (
        f"kernel: argument '{{}}': the simulator takes numpy arrays and CPU torch tensors, got a {kind}; convert it, "
        f"for instance with numpy.asarray"
    )

    def kernel(x: Any) -> None:
        raise AssertionError("the kernel runs")

    assert refused(ArgumentTypeError, lambda: nki.jit(kernel)(ForeignArray())) == expected.format("x")
    assert refused(ArgumentTypeError, lambda: nki.jit(kernel)((1, ForeignArray()))) == expected.format("x[1]")


def test_types_of_numpy_are_no_arrays() -> None:
    """They can be asked for an array, too."""
    seen: list[Any] = []
    nki.jit(lambda *given: seen.extend(given))(np.float32, np.ndarray, ml_dtypes.bfloat16, np.str_("mode"))
    assert seen == [np.float32, np.ndarray, ml_dtypes.bfloat16, "mode"]
