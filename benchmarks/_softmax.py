# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The softmax family that is measured: its inputs, its passes on two simulated cores and in torch, and their memory.

``python -m benchmarks._softmax SHAPE AXIS DTYPE PASS`` launches one pass and prints what memory it took, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks._against_torch import as_tensor
from benchmarks._inputs import BF16, DTYPES, normal_row
from benchmarks._memory import MemoryUse, measure_in_process, peak_resident_bytes, resident_bytes
from nkilib.experimental.loss import distillation_backward, distillation_forward, kl_div_backward, kl_div_forward
from nkilib.experimental.softmax import (
    log_softmax_backward,
    log_softmax_forward,
    softmax_backward,
    softmax_forward,
)

CORES = 2
# Elements of a partition that an instruction takes: few pieces, since each costs the interpreter's time. The kernels'
# own choice is for the device.
_CHUNK = 8032
_DISTILLATION_CHUNK = 2921


@dataclass(frozen=True)
class SoftmaxCase:
    """A problem size.

    Attributes:
        shape: the shape of the tensors.
        axis: along which elements add up to 1.
        dtype_name: the type of all tensors, a key of ``benchmarks._inputs.DTYPES``.
    """

    shape: tuple[int, ...]
    axis: int
    dtype_name: str

    @property
    def chunk(self) -> int | None:
        """The kernels' ``chunk_size``; None along another axis than the last, where the kernels choose."""
        return min(_CHUNK, self.shape[-1]) if self.axis == -1 else None

    def __str__(self) -> str:
        return f"{list(self.shape)}, axis {self.axis}, {self.dtype_name}"


@dataclass
class SoftmaxInputs:
    """Scores x, a gradient dy of the results, and log-probabilities y: one memory for the kernels and for torch. The
    distillation takes dy for the logits of the teacher.

    Attributes:
        case: the sizes.
        x, dy, y: for the kernels.
        torch_x, torch_dy, torch_y: for torch.
    """

    case: SoftmaxCase
    x: np.ndarray = field(init=False)
    dy: np.ndarray = field(init=False)
    y: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.x, self.dy = (_normal(self.case, seed) for seed in range(2))
        self.torch_x, self.torch_dy = as_tensor(self.x), as_tensor(self.dy)
        self.torch_y = torch.log_softmax(self.torch_x, self.case.axis)
        self.y = as_array(self.torch_y)

    @cached_property
    def leaf(self) -> torch.Tensor:
        """x, as a tensor that requires a gradient."""
        return self.torch_x.detach().requires_grad_()

    @cached_property
    def divergence(self) -> torch.Tensor:
        """torch's graph of the divergence, made before its backward is timed."""
        return _divergence(self.leaf, self.torch_y)

    @cached_property
    def distilled(self) -> torch.Tensor:
        """torch's graph of the distillation loss, made before its backward is timed."""
        return _distillation(self.leaf, self.torch_dy).sum()

    @cached_property
    def saved(self) -> tuple[np.ndarray, ...]:
        """The results of the distillation's forward that its backward takes."""
        return self.distill()[1:]

    def distill(self) -> tuple[np.ndarray, ...]:
        """The distillation's forward, of student x and teacher dy."""
        chunk = min(_DISTILLATION_CHUNK, self.x.shape[-1])
        return tuple(distillation_forward[CORES](self.x, self.dy, chunk_size=chunk))

    def distill_backward(self) -> np.ndarray:
        """Return the gradient of the sum of the distillation's losses."""
        chunk = min(_DISTILLATION_CHUNK, self.x.shape[-1])
        ones = np.ones(self.x.shape[0], np.float32)
        tensors: tuple[Any, ...] = (self.x, self.dy, *self.saved, ones)
        gradient: np.ndarray = distillation_backward[CORES](*tensors, chunk_size=chunk)
        return gradient

    @property
    def tensors(self) -> tuple[np.ndarray, ...]:
        """The arrays x, dy and y."""
        return self.x, self.dy, self.y


def _divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(x, y, log_target=True, reduction="sum")


def _distillation(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    logs = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
    return F.kl_div(*logs, log_target=True, reduction="none").sum(-1)


def _normal(case: SoftmaxCase, seed: int) -> np.ndarray:
    """Standard normal, row by row, so that there is no float32 copy of the whole."""
    values = np.empty(case.shape, DTYPES[case.dtype_name])
    for number, row in enumerate(values.reshape(-1, case.shape[-1])):
        row[:] = normal_row(seed, number, row.size).astype(values.dtype)
    return values


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """An array on the memory of a tensor."""
    is_bf16 = tensor.dtype == torch.bfloat16
    array: np.ndarray = tensor.view(torch.int16).numpy().view(BF16) if is_bf16 else tensor.numpy()
    return array


@dataclass(frozen=True)
class Pass:
    """A timed pass.

    Attributes:
        ours: the launch of a kernel.
        torch: the same computation in PyTorch, eager, without a graph.
    """

    ours: Callable[[SoftmaxInputs], np.ndarray]
    torch: Callable[[SoftmaxInputs], torch.Tensor]


_aten = torch.ops.aten

PASSES: dict[str, Pass] = {
    "softmax": Pass(
        lambda i: softmax_forward[CORES](i.x, i.case.axis, chunk_size=i.case.chunk),
        lambda i: torch.softmax(i.torch_x, i.case.axis),
    ),
    "softmax, backward": Pass(
        lambda i: softmax_backward[CORES](i.dy, i.y, i.case.axis, chunk_size=i.case.chunk),
        lambda i: _aten._softmax_backward_data(i.torch_dy, i.torch_y, i.case.axis, i.torch_x.dtype),
    ),
    "log_softmax": Pass(
        lambda i: log_softmax_forward[CORES](i.x, i.case.axis, chunk_size=i.case.chunk),
        lambda i: torch.log_softmax(i.torch_x, i.case.axis),
    ),
    "log_softmax, backward": Pass(
        lambda i: log_softmax_backward[CORES](i.dy, i.y, i.case.axis, chunk_size=i.case.chunk),
        lambda i: _aten._log_softmax_backward_data(i.torch_dy, i.torch_y, i.case.axis, i.torch_x.dtype),
    ),
    "kl_div": Pass(
        lambda i: kl_div_forward[CORES](i.x, i.y, log_target=True, reduction="sum"),
        lambda i: _divergence(i.torch_x, i.torch_y),
    ),
    "kl_div, backward": Pass(
        lambda i: kl_div_backward[CORES](i.x, i.y, np.ones(1, np.float32), log_target=True, reduction="sum"),
        lambda i: torch.autograd.grad(i.divergence, i.leaf, retain_graph=True)[0],
    ),
    "distillation": Pass(
        lambda i: i.distill()[0],
        lambda i: _distillation(i.torch_x, i.torch_dy),
    ),
    "distillation, backward": Pass(
        lambda i: i.distill_backward(),
        lambda i: torch.autograd.grad(i.distilled, i.leaf, retain_graph=True)[0],
    ),
}


def measure_softmax_memory(case: SoftmaxCase, name: str) -> MemoryUse:
    """Launch the pass ``name`` of ``case`` in a fresh process and return what it needed.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    return measure_in_process("benchmarks._softmax", "x".join(map(str, case.shape)), case.axis, case.dtype_name, name)


def main(arguments: list[str]) -> None:
    shape, axis, dtype_name, name = arguments
    case = SoftmaxCase(tuple(map(int, shape.split("x"))), int(axis), dtype_name)
    inputs = SoftmaxInputs(case)
    kept = sum(array.nbytes for array in inputs.tensors)
    before = resident_bytes()
    result = PASSES[name].ours(inputs)
    # The inputs lay in memory before: both what grew and what is held count them.
    growth = max(peak_resident_bytes() - before, result.nbytes) + kept
    print(json.dumps(asdict(MemoryUse(growth=growth, arrays=kept + result.nbytes))))


if __name__ == "__main__":
    main(sys.argv[1:])
