# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A kernel of your own that calls ours inside NKI code: ``python -m examples.call_from_nki``.

The kernel is the end of a language model in one launch: it multiplies hidden states by the weights of the output layer,
leaves the logits in HBM, and calls cross-entropy forward and backward on them as plain functions of
``nkilib.experimental.loss.inline``, which the NKI compiler inlines. The program compares the results with numpy in
float64. It runs on the simulator, or on a Neuron device where the real NKI is installed (never tried there).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from examples._arithmetic import Float64Arithmetic
from examples._display import EXAMPLE_WIDTH, heading, make_console, plain_table, takes
from nkilib.experimental.loss.inline import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import backend, nisa, nki, nl

# The unit of a matrix product: a bank of PSUM holds 512 float32 a partition.
_BANK_COLUMNS = 512
# Bounds, both included. The kernels take up to 2^30 words, but here weights and logits are in the memory of a computer,
# and in float64 too: 2.7 GB and 13 s for the most words, at full width and positions.
_PARTITIONS, _WORDS = (1, 128), (2, 1 << 19)
# Seconds on two cores: of the start, and of the largest problem.
_START, _LARGEST = 1.0, 12.0
# Largest error that float32 leaves, as a share of the largest value: a product of 128 terms is good to some 1e-6 of it.
LARGEST_ERROR = 1e-5


@nki.jit
def output_layer_loss(
    hidden: nl.NkiTensor, weight: nl.NkiTensor, targets: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Cross-entropy of an output layer, and its gradient with respect to the logits, on one core.

    Equivalent to ``F.cross_entropy(hidden.T @ weight, targets, reduction="none")`` in PyTorch, and to the gradient of
    the mean of that loss.

    Dimensions:
        H: width of the model, 1 to 128: the partitions that a product contracts.
        N: positions, 1 to 128.
        V: vocabulary size.

    Args:
        hidden: [H, N], float32, in HBM; a product contracts the partition dimension.
        weight: [H, V], float32, in HBM.
        targets: [N], int32, in HBM, each in [0, V).

    Returns:
        loss: [N], float32, nats.
        gradient: [N, V], float32, of the mean loss; it is stored in the memory of the logits.
    """
    width, positions = hidden.shape
    vocab_size = weight.shape[1]
    hidden_tile = nl.ndarray((width, positions), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=hidden_tile, src=hidden)
    # Returned, after the backward has written over it: shared_hbm is where results of a launch live.
    logits = nl.ndarray((positions, vocab_size), dtype=nl.float32, buffer=nl.shared_hbm)
    for start in range(0, vocab_size, _BANK_COLUMNS):
        columns = min(_BANK_COLUMNS, vocab_size - start)
        weight_tile = nl.ndarray((width, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=weight_tile, src=weight[:, start : start + columns])
        product = nl.ndarray((positions, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=hidden_tile, moving=weight_tile)
        logits_tile = nl.ndarray((positions, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=logits_tile, src=product)
        nisa.dma_copy(dst=logits[:, start : start + columns], src=logits_tile)

    chunk_size = min(vocab_size, 8192)
    loss, lse = cross_entropy_forward(logits, targets, chunk_size=chunk_size, dtype=nl.float32)
    gradient = cross_entropy_backward(logits, targets, lse, chunk_size=chunk_size, dtype=nl.float32, inplace=True)
    return loss, gradient


def make_inputs(width: int, positions: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make hidden [width, positions] and weight [width, vocabulary], both float32, and targets [positions] int32."""
    generator = np.random.default_rng(0)
    hidden = generator.standard_normal((width, positions), dtype=np.float32)
    weight = generator.standard_normal((width, vocabulary), dtype=np.float32) / np.float32(np.sqrt(width))
    return hidden, weight, generator.integers(0, vocabulary, positions, dtype=np.int32)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for the command line of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.call_from_nki",
        description="Run a kernel that multiplies by an output layer and calls the cross-entropy of nkilib inside NKI "
        "code, and compare it with numpy in float64.",
    )
    # Default, bounds, meaning, and the reason for the bounds.
    sizes = {
        "width": (128, _PARTITIONS, "width of the model", "a matrix product takes no other"),
        "positions": (128, _PARTITIONS, "words to predict", "a matrix product takes no other"),
        "vocabulary": (32000, _WORDS, "words to choose from", "one shows nothing, and more take 3 GB of memory and up"),
    }
    for name, (default, (least, most), meaning, _) in sizes.items():
        text = f"{meaning}, {least} to {most} (default {default})"
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    options = parser.parse_args(arguments)
    for name, (_, (least, most), _, reason) in sizes.items():
        if not least <= getattr(options, name) <= most:
            parser.error(f"--{name} must be from {least} to {most}, got {getattr(options, name)}: {reason}")
    return options


def seconds_of(options: argparse.Namespace) -> float:
    """The time that the program takes on the simulator."""
    share = options.width * options.positions * options.vocabulary / (_PARTITIONS[1] ** 2 * _WORDS[1])
    return _START + share * _LARGEST


def compare(results: dict[str, tuple[Any, np.ndarray]], console: Console) -> bool:
    """Show how far each result is from its exact value; returns whether all are near enough."""
    table = plain_table("Largest errors")
    table.add_column("")
    table.add_column("share of the largest value", justify="right")
    is_right = True
    for name, (actual, exact) in results.items():
        share = float(np.abs(actual.astype(np.float64) - exact).max() / np.abs(exact).max())
        table.add_row(name, f"{share:.1e}")
        is_right = is_right and share <= LARGEST_ERROR
    console.print(table)
    return is_right


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kernel once; return 0, or 1 if a result differs from numpy's."""
    options = parse_arguments(arguments)
    console = make_console(EXAMPLE_WIDTH)
    hidden, weight, targets = make_inputs(options.width, options.positions, options.vocabulary)
    console.print(
        heading(
            "Cross-entropy inside a kernel of your own",
            "Shows NKI code that calls ours: output layer, loss and gradient in one launch.",
            f"hidden [{options.width}, {options.positions}], weight [{options.width}, {options.vocabulary}], float32.",
            f"NKI: {backend.name} ({backend.reason}).",
            *([takes(seconds_of(options))] if backend.name == "simulator" else []),
        )
    )
    loss, gradient = output_layer_loss(hidden, weight, targets)
    logits = hidden.T.astype(np.float64) @ weight.astype(np.float64)
    exact_loss, exact_gradient = Float64Arithmetic().losses_and_gradient(logits, targets)
    is_right = compare({"loss": (loss, exact_loss), "gradient": (gradient, exact_gradient)}, console)
    console.print("[green]The results agree with float64.[/]" if is_right else "[bold red]The results differ.[/]")
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
