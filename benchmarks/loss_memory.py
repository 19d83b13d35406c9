# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Peak memory of output layer and loss, three ways: ``python -m benchmarks.loss_memory`` prints the README's figures.

Each way runs forward and backward of hidden states [N, D] and a weight [V, D] in bfloat16, on the CPU, in a process of
its own. What counts is the growth of the peak resident set beyond hidden states and weight. PyTorch's loss gets float32
logits, as the trainers of transformers and TorchTitan call it. The kernels run in the simulator, whose own buffers
count as well. The output layer computes its products in blocks of classes: PyTorch's product of bfloat16 takes float32
copies on CPUs without such instructions, which would be two more tensors of the size of the logits.

Run as ``python -m benchmarks.loss_memory POSITIONS FEATURES CLASSES WAY`` it prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F

from benchmarks._display import table_of
from benchmarks._memory import MemoryUse, Sizes, measure_in_process, peak_resident_bytes, resident_bytes
from examples._display import heading, make_console
from nkilib.torch import cross_entropy, linear_cross_entropy

MEBI: Final = 1 << 20


@dataclass(frozen=True)
class Way:
    """One way to compute the loss.

    Attributes:
        name: the name in the README and its picture.
        loss: the loss, 0-d, of hidden states [N, D], weight [V, D] and targets [N].
        copies, itemsize: how many tensors [N, V] exist at once at the peak, and the bytes of an element.
        measured: MiB at :data:`SIZES`, as the README and its picture show them.
    """

    name: str
    loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    copies: int
    itemsize: int
    measured: int


_BLOCK: Final = 512  # classes


class _OutputLayer(torch.autograd.Function):
    """The product ``x @ w.T`` of [N, D] and [V, D], and its gradients, in blocks of classes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        logits = x.new_empty(x.shape[0], w.shape[0])
        for first in range(0, w.shape[0], _BLOCK):
            logits[:, first : first + _BLOCK] = x @ w[first : first + _BLOCK].T
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (x, w), (grad,) = ctx.saved_tensors, grads
        grad_x, grad_w = torch.zeros(x.shape), torch.empty_like(w)
        for first in range(0, w.shape[0], _BLOCK):
            block, rows = grad[:, first : first + _BLOCK], w[first : first + _BLOCK]
            grad_x += block.float() @ rows.float()
            grad_w[first : first + _BLOCK] = block.T @ x
        return grad_x.to(x.dtype), grad_w


def _logits(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = _OutputLayer.apply(x, w)
    return logits


SIZES: Final = Sizes(2048, 256, 64_000)
WAYS: Final = {
    "stock": Way("PyTorch", lambda x, w, t: F.cross_entropy(_logits(x, w).float(), t), 3, 4, 1510),
    "inplace": Way(
        "cross_entropy(inplace=True)", lambda x, w, t: cross_entropy(_logits(x, w), t, inplace=True), 1, 2, 345
    ),
    "linear": Way("linear_cross_entropy", linear_cross_entropy, 0, 2, 168),
}


def measure(sizes: Sizes, way: str) -> MemoryUse:
    """Return the memory of a forward and backward in a fresh process; ``arrays`` are the two gradients.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    return measure_in_process("benchmarks.loss_memory", sizes.positions, sizes.features, sizes.classes, way)


def _grown(sizes: Sizes, way: str) -> int:
    """Run a forward and backward; return by how many bytes the peak exceeds what there was with the inputs."""
    hidden = torch.randn(sizes.positions, sizes.features).bfloat16().requires_grad_()
    weight = (torch.randn(sizes.classes, sizes.features) / 16).bfloat16().requires_grad_()
    target = torch.randint(sizes.classes, (sizes.positions,))
    before = resident_bytes()
    WAYS[way].loss(hidden, weight, target).backward()
    return peak_resident_bytes() - before


def _measured(sizes: Sizes, way: str) -> MemoryUse:
    """Measure in this process, after a small case that loads what is loaded once."""
    torch.manual_seed(0)
    _grown(Sizes(128, sizes.features, 512), way)
    return MemoryUse(_grown(sizes, way), 2 * sizes.features * (sizes.positions + sizes.classes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the memory of all ways beside the tensors [N, V] that each holds and the figures of the README."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) == 4:
        print(json.dumps(asdict(_measured(Sizes(*map(int, given[:3])), given[3]))))
        return 0
    argparse.ArgumentParser(prog="python -m benchmarks.loss_memory", description=__doc__).parse_args(given)
    console = make_console()
    console.print(heading("memory of output layer and loss", "three processes, half a minute in all"))
    title = f"N = {SIZES.positions}, D = {SIZES.features}, V = {SIZES.classes}, bfloat16, on the CPU"
    table = table_of(title, ("loss",), ("peak, MiB", "of which logits and gradients, N x V", "README"))
    for name, way in WAYS.items():
        logits = f"{way.copies} x {SIZES.logits_bytes(way.itemsize) / MEBI:.0f}" if way.copies else "none"
        table.add_row(way.name, f"{measure(SIZES, name).growth / MEBI:.0f}", logits, str(way.measured))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
