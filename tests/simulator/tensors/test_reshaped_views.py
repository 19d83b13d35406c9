# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views that insert, drop, split, merge and rename dimensions, against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nl
from nkilib.simulator import NkiValidationError, OutOfRangeError
from nkilib.simulator.tensors.tensor import NkiTensor
from tests.simulator.frame import counted, empty, fetched, in_hbm, in_sbuf, indices, refused
from tests.simulator.refused_views import TensorOf, constraints

CUBE = "tensor [4, 2, 6] float32 in private_hbm"
TILE = "tensor [4, 2, 6] float32 in sbuf"
ROWS = "tensor [3, 2, 6] float32 in private_hbm"

BOTH = pytest.mark.parametrize("make", [in_hbm, in_sbuf])


def cube() -> NkiTensor:
    return in_hbm(counted(4, 2, 6))


def tile() -> NkiTensor:
    return in_sbuf(counted(4, 2, 6))


def rows() -> NkiTensor:
    """An indirect view whose first dimension is that of a vector offset."""
    return cube().vector_select(0, indices(3, 0, 3))


# -- the examples of the docstrings ----------------------------------------------------------------------------


def test_the_documented_examples() -> None:
    t = empty(128, 64, buffer=nl.sbuf)
    assert t.expand_dim(1).shape == (128, 1, 64)
    assert t.expand_dim(1).squeeze_dim(1).shape == (128, 64)
    wide = empty(128, 24, buffer=nl.sbuf)
    assert wide.reshape_dim(1, (4, 6)).shape == wide.reshape_dim(1, (4, -1)).shape == (128, 4, 6)
    assert empty(128, 2, 3, 4, buffer=nl.sbuf).flatten_dims(1, 2).shape == (128, 6, 4)
    assert wide.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4}).shape == (128, 6, 4)


# -- expand_dim, squeeze_dim -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -4, np.int64(2)])
def test_expand_dim_in_hbm_is_numpys(dim: int) -> None:
    array = counted(4, 2, 6)
    np.testing.assert_array_equal(in_hbm(array).expand_dim(dim).array, np.expand_dims(array, dim), strict=True)


@BOTH
@pytest.mark.parametrize("dim", [1, 2, 3, -1])
def test_an_expanded_dimension_broadcasts_and_goes_away_again(make: Any, dim: int) -> None:
    array = counted(4, 2, 6)[:, :, ::2]
    view = make(counted(4, 2, 6))[:, :, ::2].expand_dim(dim)
    np.testing.assert_array_equal(view.broadcast(dim, 3).array, np.repeat(np.expand_dims(array, dim), 3, dim))
    np.testing.assert_array_equal(view.squeeze_dim(dim).array, array, strict=True)
    assert view.squeeze_dim(dim).layout == make(counted(4, 2, 6))[:, :, ::2].layout


def test_an_expanded_dense_view_is_dense() -> None:
    assert tile().expand_dim(1).strides == (12, 12, 6, 1)
    assert cube().expand_dim(0).strides == (48, 12, 6, 1)
    assert cube().expand_dim(3).strides == (12, 6, 1, 1)


def test_squeeze_dim_drops_a_dimension_of_one_element_anywhere() -> None:
    array = counted(1, 4, 1, 6, 1)
    t = in_hbm(array)
    for dim in (0, 2, 4, -1):
        np.testing.assert_array_equal(t.squeeze_dim(dim).array, array.squeeze(dim), strict=True)
    window = tile()[:, 1:2, 2:5].squeeze_dim(1)
    np.testing.assert_array_equal(window.array, counted(4, 2, 6)[:, 1, 2:5], strict=True)


def test_expand_and_squeeze_of_a_gather_keep_its_rows_first() -> None:
    array = counted(5, 3)

    def view(x: Any, index: Any) -> Any:
        return x.vector_select(0, index).expand_dim(1).broadcast(1, 2).expand_dim(3).squeeze_dim(-1)

    np.testing.assert_array_equal(fetched(view, array, [4, 1]), np.repeat(array[[4, 1]][:, None], 2, axis=1))


# -- reshape_dim, flatten_dims ---------------------------------------------------------------------------------


@st.composite
def splits(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Sizes whose product is `size`."""
    sizes = []
    while draw(st.booleans()) and len(sizes) < 3:
        part = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        sizes.append(part)
        size //= part
    return (*sizes, size)


@given(st.data())
def test_reshape_dim_is_numpys_reshape_of_one_dimension(data: st.DataObject) -> None:
    array = counted(4, 12, 8)[:, :, 2:]
    dim = data.draw(st.integers(0, 2))
    sizes = data.draw(splits(array.shape[dim]))
    expected = array.reshape(*array.shape[:dim], *sizes, *array.shape[dim + 1 :])
    unknown = data.draw(st.none() | st.integers(0, len(sizes) - 1))
    asked = tuple(-1 if at == unknown else size for at, size in enumerate(sizes))
    np.testing.assert_array_equal(
        in_hbm(counted(4, 12, 8))[:, :, 2:].reshape_dim(dim, asked).array, expected, strict=True
    )
    if dim > 0:
        on_chip = in_sbuf(counted(4, 12, 8))[:, :, 2:].reshape_dim(dim - 3, list(asked))
        np.testing.assert_array_equal(on_chip.array, expected, strict=True)


def test_the_partition_dimension_may_stay_as_it_is() -> None:
    for shape in ((4,), (-1,)):
        assert tile().reshape_dim(0, shape).layout == tile().layout


def test_a_strided_dimension_can_be_split_and_merged() -> None:
    array = counted(3, 12)
    split = in_hbm(array)[:, ::2].reshape_dim(1, (2, 3))
    assert split.get_pattern() == [[12, 3], [6, 2], [2, 3]]
    np.testing.assert_array_equal(split.flatten_dims(1, 2).array, array[:, ::2], strict=True)


@BOTH
def test_flatten_dims_is_numpys_reshape(make: Any) -> None:
    array = counted(4, 2, 3, 5)
    for first, last in ((1, 2), (2, 3), (1, 3), (-2, -1), (2, 2)):
        low, high = first % 4, last % 4
        expected = array.reshape(*array.shape[:low], -1, *array.shape[high + 1 :])
        np.testing.assert_array_equal(make(array).flatten_dims(first, last).array, expected, strict=True)
    assert in_hbm(array).flatten_dims(0, 3).shape == (120,)


def test_flatten_dims_asks_only_that_the_merged_dimensions_follow_each_other() -> None:
    array = counted(4, 2, 6)
    moved = in_hbm(array).permute((2, 0, 1))[::2]
    np.testing.assert_array_equal(moved.flatten_dims(1, 2).array, array.transpose(2, 0, 1)[::2].reshape(3, 8))
    np.testing.assert_array_equal(in_hbm(array)[:, :1, ::3].flatten_dims(1, 2).array, array[:, 0, ::3], strict=True)


def test_splits_and_merges_of_a_gather() -> None:
    array, index = counted(5, 4, 6), [4, 1, 1]

    def view(x: Any, i: Any) -> Any:
        return x.vector_select(0, i).reshape_dim(2, (2, 3)).flatten_dims(1, 2)

    np.testing.assert_array_equal(fetched(view, array, index), array[index].reshape(3, 8, 3))
    one = fetched(lambda x, i: x.select(0, i).reshape_dim(0, (2, 2)).flatten_dims(1, 2), array, [3])
    np.testing.assert_array_equal(one, array[3].reshape(2, 12))


# -- rearrange -------------------------------------------------------------------------------------------------


@given(st.permutations("bhwc"), st.sampled_from(["h", "w"]))
def test_rearrange_is_numpys_reshape_and_transpose(order: list[str], known: str) -> None:
    array = counted(3, 8, 5)
    expected = array.reshape(3, 2, 4, 5).transpose(["bhwc".index(name) for name in order])
    view = in_hbm(array).rearrange(("b", ("h", "w"), "c"), tuple(order), {known: {"h": 2, "w": 4}[known]})
    np.testing.assert_array_equal(view.array, expected, strict=True)
    back = view.rearrange(tuple(order), ("b", "h", "w", "c")).rearrange(("b", "h", "w", "c"), ("b", ("h", "w"), "c"))
    np.testing.assert_array_equal(back.array, array, strict=True)


@BOTH
def test_rearrange_splits_reorders_and_merges_at_once(make: Any) -> None:
    array = counted(4, 6, 4)
    view = make(array).rearrange(("p", ("a", "b"), ("x", "y")), ("p", "b", ["a"], ("x", "y")), {"a": 2, "x": 2})
    expected = array.reshape(4, 2, 3, 4).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(view.array, expected, strict=True)
    merged = make(array).rearrange(("p", "a", ("x", "y")), ("p", ("a", "x", "y")), {"x": 2, "y": 2, "a": 6})
    np.testing.assert_array_equal(merged.array, array.reshape(4, 24), strict=True)


def test_rearrange_merges_two_groups() -> None:
    array = counted(2, 3, 4, 5)
    view = in_hbm(array).rearrange(("a", "b", "c", "d"), (("c", "d"), ("a", "b")))
    np.testing.assert_array_equal(view.array, array.transpose(2, 3, 0, 1).reshape(20, 6), strict=True)


def test_rearrange_of_a_gather_keeps_its_rows_first() -> None:
    array = counted(5, 8)
    view = fetched(
        lambda x, i: x.vector_select(0, i).rearrange(("p", ("a", "b")), ("p", "b", "a"), {"a": 2}), array, [3, 0]
    )
    np.testing.assert_array_equal(view, array[[3, 0]].reshape(2, 2, 4).transpose(0, 2, 1))


# -- what is refused -------------------------------------------------------------------------------------------


def _first(method: str, tensor: str, kind: str = "counts partitions") -> str:
    return f"NkiTensor.{method}: dimension 0 of {tensor} {kind} and must stay as it is"


def _sizes(dim: int, fault: str) -> str:
    return f"NkiTensor.reshape_dim of dimension {dim} of {CUBE}: sizes {fault}"


ON_CHIP = TensorOf(tile)
GATHERED = TensorOf(rows)
IN_HBM = TensorOf(cube)


@constraints(
    ON_CHIP.expand_dim(0).refused_with(_first("expand_dim", TILE)).instead(lambda: cube().expand_dim(0)),
    ON_CHIP.expand_dim(-4).refused_with(_first("expand_dim", TILE)).fixed(-3),
    GATHERED.expand_dim(0).refused_with(_first("expand_dim", ROWS, "is indirect")).fixed(1),
    TensorOf(lambda: in_sbuf(counted(1, 6)))
    .squeeze_dim(0)
    .refused_with(_first("squeeze_dim", "tensor [1, 6] float32 in sbuf"))
    .instead(lambda: in_hbm(counted(1, 6)).squeeze_dim(0)),
    TensorOf(lambda: cube().vector_select(0, indices(3)))
    .squeeze_dim(0)
    .refused_with(_first("squeeze_dim", "tensor [1, 2, 6] float32 in private_hbm", "is indirect"))
    .instead(lambda: cube()[3:].squeeze_dim(0)),
    IN_HBM.squeeze_dim(1).says(f"dimension 1 of {CUBE} must have size 1").instead(lambda: cube()[:, 1:].squeeze_dim(1)),
    TensorOf(lambda: in_sbuf(counted(4, 1)))
    .squeeze_dim(1)
    .says("tensor [4, 1] float32 in sbuf must keep a dimension besides its partitions")
    .instead(lambda: in_sbuf(counted(4, 1, 1)).squeeze_dim(1)),
    TensorOf(lambda: in_hbm(counted(1)))
    .squeeze_dim(0)
    .says("tensor [1] float32 in private_hbm must keep a dimension besides its partitions")
    .instead(lambda: in_hbm(counted(1, 1)).squeeze_dim(0)),
    IN_HBM.reshape_dim(2, (2, 2)).refused_with(_sizes(2, "[2, 2] do not make up 6")).fixed(2, (2, 3)),
    IN_HBM.reshape_dim(2, (4, -1)).refused_with(_sizes(2, "[4, -1] do not make up 6")).fixed(2, (3, -1)),
    IN_HBM.reshape_dim(2, (0, -1)).refused_with(_sizes(2, "[0, -1] do not make up 6")).fixed(2, (6, -1)),
    IN_HBM.reshape_dim(2, (-1, 2, -1))
    .refused_with(_sizes(2, "must not be negative, except for one -1, got [-1, 2, -1]"))
    .fixed(2, (-1, 2, 1)),
    IN_HBM.reshape_dim(2, (-2, -3))
    .refused_with(_sizes(2, "must not be negative, except for one -1, got [-2, -3]"))
    .fixed(2, (2, 3)),
    IN_HBM.reshape_dim(1, ()).refused_with(_sizes(1, "must not be negative, except for one -1, got []")).fixed(1, (2,)),
    ON_CHIP.reshape_dim(0, (2, 2))
    .refused_with(_first("reshape_dim", TILE))
    .instead(lambda: cube().reshape_dim(0, (2, 2))),
    GATHERED.reshape_dim(0, (3,)).refused_with(_first("reshape_dim", ROWS, "is indirect")).fixed(1, (2,)),
    ON_CHIP.flatten_dims(0, 1).refused_with(_first("flatten_dims", TILE)).fixed(1, 2),
    GATHERED.flatten_dims(0, 1).refused_with(_first("flatten_dims", ROWS, "is indirect")).fixed(1, 2),
    IN_HBM.flatten_dims(2, 1).says(f"start_dim must not come after end_dim, got 2 and 1 for {CUBE}").fixed(1, 2),
    IN_HBM[:, :, 1:]
    .flatten_dims(1, 2)
    .says(
        "dimensions 1 to 2 of tensor [4, 2, 5] float32 in private_hbm with strides (12, 6, 1) are not "
        "contiguous in memory"
    )
    .instead(lambda: cube()[1:].flatten_dims(1, 2)),
    TensorOf(lambda: tile().permute((0, 2, 1)))
    .flatten_dims(1, 2)
    .says("dimensions 1 to 2 of tensor [4, 6, 2] float32 in sbuf with strides (12, 1, 6) are not contiguous in memory")
    .instead(lambda: tile().flatten_dims(1, 2)),
)
def test_constraints(broken: Any, message: str, corrected: Any) -> None:
    assert refused(NkiValidationError, broken) == message
    assert isinstance(corrected(), NkiTensor)


@constraints(
    IN_HBM.expand_dim(4).says(f"dim must be in [0, 3] of {CUBE}, got 4").fixed(3),
    IN_HBM.expand_dim(-5).says(f"dim must be in [0, 3] of {CUBE}, got -5").fixed(-4),
    IN_HBM[:1].squeeze_dim(3).says("dim must be in [0, 3) of tensor [1, 2, 6] float32 in private_hbm, got 3").fixed(-3),
    IN_HBM.reshape_dim(3, (1,)).says(f"dim must be in [0, 3) of {CUBE}, got 3").fixed(2, (6,)),
    IN_HBM.flatten_dims(1, 3).says(f"dim must be in [0, 3) of {CUBE}, got 3").fixed(1, 2),
)
def test_dimensions_that_the_tensor_does_not_have(broken: Any, message: str, corrected: Any) -> None:
    assert refused(OutOfRangeError, broken) == message
    assert isinstance(corrected(), NkiTensor)


ABC, ACB = ("a", "b", "c"), ("a", "c", "b")
SPLIT, SWAPPED = ("a", "b", ("c", "d")), ("a", "c", "b", "d")


@pytest.mark.parametrize(
    ("broken", "reason", "corrected"),
    [
        ((("a", "b"), ABC), "both patterns must have the same names", (ABC, ACB)),
        ((("a", "b"), ("b", "a")), "src_pattern must have 3 items, one for each dimension", (ABC, ACB)),
        ((("a", "b", "b"), ("a", "b", "b")), "src_pattern must have every name once", (ABC, ABC)),
        ((ABC, ("a", "b", 2)), "dst_pattern must be a tuple of names and tuples of names", (ABC, ACB)),
        ((("a", (), "c"), ACB), "src_pattern must be a tuple of names and tuples of names", (("a", ("b",), "c"), ACB)),
        (("abc", ACB), "src_pattern must be a tuple of names and tuples of names, got 'abc'", (ABC, ACB)),
        ((ABC, ACB, {"d": 2}), "fixed_sizes names 'd', which the patterns do not have", (ABC, ACB, {"b": 2})),
        ((ABC, ACB, {"b": 3}), "dimension 1, ('b',): sizes [3] do not make up 2", (ABC, ACB, {"b": 2})),
        (
            (SPLIT, SWAPPED),
            "dimension 2, ('c', 'd'): sizes must not be negative, except for one -1, got [-1, -1]",
            (SPLIT, SWAPPED, {"d": 3}),
        ),
        (
            (SPLIT, SWAPPED, {"d": 4}),
            "dimension 2, ('c', 'd'): sizes [-1, 4] do not make up 6",
            (SPLIT, SWAPPED, {"d": 3}),
        ),
        (
            (ABC, ("b", "a", "c")),
            f"NkiTensor.permute: dimension 0 of {TILE} must stay first, got (1, 0, 2)",
            (ABC, ACB),
        ),
        (
            ((("a", "d"), "b", "c"), ("a", "d", "b", "c"), {"a": 2}),
            _first("reshape_dim", TILE),
            (("a", ("d", "b"), "c"), ("a", "d", "b", "c"), {"d": 1}),
        ),
        (
            (ABC, ("a", ("c", "b"))),
            "NkiTensor.flatten_dims: dimensions 1 to 2 of tensor [4, 6, 2] float32 in sbuf with strides (12, 1, 6) are "
            "not contiguous in memory",
            (ABC, ("a", ("b", "c"))),
        ),
    ],
)
def test_constraints_of_rearrange(broken: Any, reason: str, corrected: Any) -> None:
    source, target, sizes = (*broken, None)[:3]
    expected = f"NkiTensor.rearrange({source!r}, {target!r}, {sizes!r}) of {TILE}: {reason}"
    assert refused(NkiValidationError, lambda: tile().rearrange(*broken)) == expected
    assert isinstance(tile().rearrange(*corrected), NkiTensor)
