# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses with class indices: what holds for those of margins alike, indices of every integer type, and the ones that 32
bits do not hold.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nkilib.torch import cross_entropy, int32_targets
from nkilib.torch.losses import indexed as target_indices
from nkilib.torch.losses.indexed import INDEX_DTYPES, is_ignored, kernel_target
from tests.torch.functions.losses import MULTI_MARGIN, MULTILABEL_MARGIN, Loss
from tests.torch.inputs import CLASSES, POSITIONS, make_logits, make_targets


@pytest.mark.parametrize("loss", [MULTI_MARGIN, MULTILABEL_MARGIN], ids=lambda loss: loss.name)
def test_no_rows(loss: Loss) -> None:
    """A mean is NaN and a sum 0; PyTorch's are not initialized."""
    empty, target = loss.inputs(0, 5)
    result = [loss.ours(empty, target, reduction=reduction) for reduction in ("none", "sum", "mean")]
    assert result[0].shape == (0,) and result[1].item() == 0.0 and result[2].isnan()
    result[1].backward()
    assert empty.grad is not None and empty.grad.shape == (0, 5)


VALUES = (
    *(0, 3, CLASSES - 1, CLASSES, -1, -100, 2**31 - 1, 2**31, 2**32 - 100, 2**32 - 1, 2**32, 2**32 + 3, 3 - 2**32),
    *(2**63 - 1, 2**63, 2**64 - 100, -(2**31), -(2**31) - 1, -(2**63)),
)
IGNORED = (-100, 3, 2**31 - 1, 2**32 - 100, 2**32 + 3, 2**63 - 1, -(2**63))


def held_by(dtype: torch.dtype) -> list[int]:
    """Return the values that a type holds."""
    limits = torch.iinfo(dtype)
    return [value for value in VALUES if limits.min <= value <= limits.max]


@pytest.mark.parametrize("ignore_index", IGNORED)
@pytest.mark.parametrize("dtype", sorted(INDEX_DTYPES, key=str))
def test_a_kernel_gets_classes_ignored_positions_and_what_is_neither(dtype: torch.dtype, ignore_index: int) -> None:
    values = held_by(dtype)
    target = torch.tensor(values, dtype=dtype)
    inputs, marker = kernel_target(target, ignore_index, CLASSES)
    assert inputs.dtype == torch.int32
    assert is_ignored(target, ignore_index).tolist() == [value == ignore_index for value in values]
    for value, index in zip(values, inputs.tolist(), strict=True):
        if value == ignore_index:
            assert index == marker
        elif 0 <= value < CLASSES:
            assert index == value
        else:
            assert index != marker and not 0 <= index < CLASSES


@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_without_memory_to_read_64_bits_are_computed_with(ignore_index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph has no memory. Clamping and comparing are right in 32 bits too, for int32 values: nothing is shifted."""
    values = [value for value in held_by(torch.int64) if value != ignore_index]
    expected = kernel_target(torch.tensor([*values, ignore_index]), ignore_index, CLASSES)[0]
    monkeypatch.setattr(target_indices, "is_traced", lambda target: True)
    inputs = kernel_target(torch.tensor([*values, ignore_index]), ignore_index, CLASSES)[0]
    valid = (expected >= 0) & (expected < CLASSES) | (expected == -100)
    assert torch.equal(inputs[valid], expected[valid])
    assert not ((inputs[~valid] >= 0) & (inputs[~valid] < CLASSES)).any()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64, torch.uint32])
def test_a_target_of_one_position_has_any_stride(dtype: torch.dtype) -> None:
    """The first element of a column has such a stride, or an expanded one; PyTorch calls both contiguous."""
    column = torch.tensor([[3, 1], [2, 0]], dtype=torch.int64).to(dtype)[:, 0]
    for target in (column[:1], column[0].expand(1)):
        assert kernel_target(target, -100, CLASSES)[0].tolist() == [3]
        assert is_ignored(target, 3).tolist() == [True]
    empty = torch.empty_strided((0,), (0,), dtype=dtype)
    assert kernel_target(empty, -100, CLASSES)[0].shape == (0,)


def test_int32_passes_untouched() -> None:
    target = make_targets(POSITIONS).to(torch.int32)
    assert kernel_target(target, -100, CLASSES)[0].data_ptr() == target.data_ptr()
    assert int32_targets(target, CLASSES) is target


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int16])
def test_targets_are_checked_and_narrowed_on_the_host(dtype: torch.dtype) -> None:
    logits = make_logits(2, 3, CLASSES)
    target = make_targets(2, 3).to(dtype)
    narrowed = int32_targets(target, CLASSES)
    assert narrowed.dtype == torch.int32 and torch.equal(narrowed, target)
    losses = [cross_entropy(logits, item, class_dim=-1) for item in (target, narrowed)]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        (torch.tensor([[0, 1], [2**32 + 3, 2]]), IndexError, "Target 4294967299 is out of bounds: position 2"),
        (torch.tensor([CLASSES]), IndexError, "must have a class from 0 to 10 or ignore_index, -100"),
        (torch.tensor([0.5]), TypeError, "target must be a tensor of an integer type, got torch.float32"),
        ([1, 2], TypeError, r"must be a tensor of an integer type, got list; pass torch\.tensor\(target\)"),
        (
            torch.zeros(1, dtype=torch.int64, device="meta"),
            ValueError,
            "must be on the CPU, .* got meta; call it before",
        ),
    ],
)
def test_what_the_host_refuses(target: Tensor, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        int32_targets(target, CLASSES)
    with pytest.raises(ValueError, match="ignore_index must be an int32, got 4294967196"):
        int32_targets(torch.tensor([0]), CLASSES, 2**32 - 100)
