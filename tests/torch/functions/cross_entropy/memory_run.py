# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Peak memory of forward and backward beyond the logits, in a process of its own. See test_figures."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import cross_entropy

CLASSES = 32_000
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pytorch": F.cross_entropy,
    "pytorch float": lambda logits, target: F.cross_entropy(logits.float(), target),
    "nkilib": cross_entropy,
    "nkilib in place": partial(cross_entropy, inplace=True),
}


# Of glibc's mallopt, and its own default: so many bytes and more come from the system and go back to it.
_MMAP_THRESHOLD, _BYTES = -3, 128 * 1024


def give_memory_back() -> None:
    """Let large arrays come from the system, as in a process of its own: those of the tests keep theirs (Makefile)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, _BYTES)
        libc.malloc_trim(0)


def resident_mib() -> float:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def peak_of(step: Callable[[], object]) -> float:
    """The most memory while ``step`` runs, beyond that before it."""
    before, peak, done = resident_mib(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    done.set()
    watcher.join()
    return peak - before


def measure(loss: Callable[[Tensor, Tensor], Tensor], positions: int) -> float:
    hidden = torch.ones(positions, 1, dtype=torch.bfloat16, requires_grad=True)
    logits = hidden @ torch.randn(1, CLASSES, dtype=torch.bfloat16)
    target = torch.randint(CLASSES, (positions,))
    return peak_of(lambda: torch.autograd.grad(loss(logits, target), logits))


def print_memory(loss: str, positions: int) -> None:
    """Print the peak memory of a loss with its gradient, in MiB."""
    chosen = LOSSES[loss]
    give_memory_back()
    measure(chosen, 8)  # what is loaded or kept once
    print(measure(chosen, positions))
