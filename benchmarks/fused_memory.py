# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Peak memory of a training step with and without ``fuse_linear_loss``: ``python -m benchmarks.fused_memory``.

Each step runs in a process of its own: forward, ``F.cross_entropy`` and backward of a model of two linear layers, in
float32. What counts is the growth of the peak resident set beyond the parameters and their gradients. It is compared
with the bytes of logits, N x V x 4: the step of the stock model has them, their log-softmax and their gradient, the
fused one none of these. The kernels run in the simulator, whose own buffers count as well.

Run as ``python -m benchmarks.fused_memory POSITIONS FEATURES CLASSES KIND`` it prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import torch
import torch.nn.functional as F

from benchmarks._display import table_of, verdict
from benchmarks._memory import MemoryUse, Sizes, measure_in_process, peak_resident_bytes, resident_bytes
from examples._display import heading, make_console
from nkilib.torch import fuse_linear_loss

STOCK, FUSED = "stock", "fused"
MEBI: Final = 1 << 20
# The goal: the fused step grows by at most that share of the bytes of logits.
LARGEST_SHARE: Final = 0.5
# Bytes of a float32 element.
_ITEMSIZE: Final = 4


SIZES: Final = (Sizes(1024, 128, 32_128), Sizes(2048, 128, 32_128), Sizes(2048, 128, 65_536))
QUICK_SIZES: Final = (Sizes(512, 32, 32_128),)


def _parameter_bytes(sizes: Sizes) -> int:
    """Return the bytes of the weights of both layers, and of their gradients."""
    return 2 * _ITEMSIZE * sizes.features * (sizes.features + sizes.classes)


def measure(sizes: Sizes, kind: str) -> MemoryUse:
    """Return the memory of a step in a fresh process; the arrays are the parameters and their gradients.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    return measure_in_process("benchmarks.fused_memory", sizes.positions, sizes.features, sizes.classes, kind)


def _step(sizes: Sizes, kind: str) -> None:
    """Run a forward and a backward."""
    model = torch.nn.Sequential(
        torch.nn.Linear(sizes.features, sizes.features, bias=False),
        torch.nn.Linear(sizes.features, sizes.classes, bias=False),
    ).train()
    if kind == FUSED:
        fuse_linear_loss(model, head="1", on_compute="raise")
    hidden, target = torch.randn(sizes.positions, sizes.features), torch.randint(sizes.classes, (sizes.positions,))
    F.cross_entropy(model(hidden), target).backward()


def _measured(sizes: Sizes, kind: str) -> MemoryUse:
    """Measure a step of this process, after a small one that loads what is loaded once."""
    torch.manual_seed(0)
    _step(Sizes(128, sizes.features, 512), kind)
    before = resident_bytes()
    _step(sizes, kind)
    return MemoryUse(peak_resident_bytes() - before, _parameter_bytes(sizes))


def share(sizes: Sizes, use: MemoryUse) -> float:
    """Return the growth beyond parameters and their gradients, as a share of the bytes of logits."""
    return use.beyond_arrays / sizes.logits_bytes(_ITEMSIZE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the memory of all sizes, and return whether a goal is missed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) == 4:
        print(json.dumps(asdict(_measured(Sizes(*map(int, given[:3])), given[3]))))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fused_memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small size only")
    options = parser.parse_args(given)
    table = table_of(
        "peak memory of a step beyond parameters and their gradients, MiB",
        ("N x D x V",),
        ("logits, N x V x 4", "stock", "fused", "stock / logits", "fused / logits", "stock / fused", "goal"),
    )
    is_met = True
    for sizes in QUICK_SIZES if options.quick else SIZES:
        uses = [measure(sizes, kind) for kind in (STOCK, FUSED)]
        stock, fused = (share(sizes, use) for use in uses)
        is_met = is_met and fused <= LARGEST_SHARE
        logits = sizes.logits_bytes(_ITEMSIZE) / MEBI
        table.add_row(
            f"{sizes.positions} x {sizes.features} x {sizes.classes}",
            *(f"{value:.0f}" for value in (logits, stock * logits, fused * logits)),
            *(f"{value:.2f}" for value in (stock, fused, stock / max(fused, 1e-3))),
            verdict(fused <= LARGEST_SHARE),
        )
    console = make_console()
    console.print(heading("fuse_linear_loss", f"the goal: fused / logits at most {LARGEST_SHARE}"))
    console.print(table)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
