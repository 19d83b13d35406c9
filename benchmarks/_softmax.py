"""The softmax family that is measured: its inputs, its passes on two simulated cores and in torch, and their memory.

``python -m benchmarks._softmax SHAPE AXIS DTYPE PASS`` launches one pass and prints what memory it took, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks._against_torch import as_tensor
from benchmarks._inputs import BF16, DTYPES, normal_row
from benchmarks._memory import MemoryUse, peak_resident_bytes, resident_bytes
from nkilib.experimental.loss import kl_div_backward, kl_div_forward
from nkilib.experimental.softmax import (
    log_softmax_backward,
    log_softmax_forward,
    softmax_backward,
    softmax_forward,
)

CORES = 2


@dataclass(frozen=True)
class SoftmaxCase:
    """A problem size.

    Attributes:
        shape: of the tensors.
        axis: along which elements add up to 1.
        dtype_name: of all tensors: a key of ``benchmarks._inputs.DTYPES``.
    """

    shape: tuple[int, ...]
    axis: int
    dtype_name: str

    def __str__(self) -> str:
        return f"{list(self.shape)}, axis {self.axis}, {self.dtype_name}"


@dataclass
class SoftmaxInputs:
    """Scores x, a gradient dy of the results, and log-probabilities y: one memory for the kernels and for torch.

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
        """x, of which torch wants a gradient."""
        return self.torch_x.detach().requires_grad_()

    @cached_property
    def divergence(self) -> torch.Tensor:
        """torch's graph of it, made before its backward is timed."""
        return _divergence(self.leaf, self.torch_y)

    @property
    def tensors(self) -> tuple[np.ndarray, ...]:
        """All arrays."""
        return self.x, self.dy, self.y


def _divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(x, y, log_target=True, reduction="sum")


def _normal(case: SoftmaxCase, seed: int) -> np.ndarray:
    """Standard normal, row by row, so that there is no float32 copy of the whole."""
    values = np.empty(case.shape, DTYPES[case.dtype_name])
    for number, row in enumerate(values.reshape(-1, case.shape[-1])):
        row[:] = normal_row(seed, number, row.size).astype(values.dtype)
    return values


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """An array on the memory of a tensor."""
    array: np.ndarray
    if tensor.dtype == torch.bfloat16:
        array = tensor.view(torch.int16).numpy().view(BF16)
    else:
        array = tensor.numpy()
    return array


@dataclass(frozen=True)
class Pass:
    """What is timed.

    Attributes:
        ours: the launch.
        torch: the same in torch, eager, without a graph.
    """

    ours: Callable[[SoftmaxInputs], np.ndarray]
    torch: Callable[[SoftmaxInputs], torch.Tensor]


_aten = torch.ops.aten

PASSES: dict[str, Pass] = {
    "softmax": Pass(
        lambda i: softmax_forward[CORES](i.x, i.case.axis),
        lambda i: torch.softmax(i.torch_x, i.case.axis),
    ),
    "softmax, backward": Pass(
        lambda i: softmax_backward[CORES](i.dy, i.y, i.case.axis),
        lambda i: _aten._softmax_backward_data(i.torch_dy, i.torch_y, i.case.axis, i.torch_x.dtype),
    ),
    "log_softmax": Pass(
        lambda i: log_softmax_forward[CORES](i.x, i.case.axis),
        lambda i: torch.log_softmax(i.torch_x, i.case.axis),
    ),
    "log_softmax, backward": Pass(
        lambda i: log_softmax_backward[CORES](i.dy, i.y, i.case.axis),
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
}


def measure_softmax_memory(case: SoftmaxCase, name: str) -> MemoryUse:
    """Launch the pass ``name`` of ``case`` in a fresh process and return what it needed.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    arguments = ("x".join(map(str, case.shape)), case.axis, case.dtype_name, name)
    command = [sys.executable, "-m", "benchmarks._softmax", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"measure_softmax_memory: {command} ended with {result.returncode}:\n{result.stderr}")
    return MemoryUse(**json.loads(result.stdout))


def main(arguments: list[str]) -> None:
    shape, axis, dtype_name, name = arguments
    case = SoftmaxCase(tuple(map(int, shape.split("x"))), int(axis), dtype_name)
    inputs = SoftmaxInputs(case)
    held = sum(array.nbytes for array in inputs.tensors)
    before = resident_bytes()
    result = PASSES[name].ours(inputs)
    # The inputs lay in memory before: both what grew and what is held count them.
    growth = max(peak_resident_bytes() - before, result.nbytes) + held
    print(json.dumps(asdict(MemoryUse(growth=growth, arrays=held + result.nbytes))))


if __name__ == "__main__":
    main(sys.argv[1:])
