# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Training with the output layer spread over processes, on this computer's CPU through the simulator:

    torchrun --nproc_per_node 2 -m examples.vocab_parallel

Each process holds the weights of a part of the words, computes their logits, and trains through
``nkilib.torch.vocab_parallel_cross_entropy``. For comparison, the same model is trained in one piece, with PyTorch's
loss.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from examples._corpus import Corpus, read_corpus
from examples._curve import curve_line, progress_bar, shown_steps
from examples._display import EXAMPLE_WIDTH, counted, heading, make_console, takes
from examples._steps import parse_steps
from nkilib.nki import NOT_SIMULATED, SIMULATED
from nkilib.torch import vocab_parallel_cross_entropy

HIDDEN = 32
LEARNING_RATE = 10.0
SEED = 0
STEPS, QUICK_STEPS = 20, 3
# Seconds on two cores: of the start, and of a step.
_START, _STEP = 4.0, 0.05
# Nats that the two losses may be apart: both are float32, and a step moves the weights by what rounding leaves.
LARGEST_DIFFERENCE = 1e-4

Loss = Callable[[Tensor, Tensor], Tensor]


class _CopyToRanks(torch.autograd.Function):
    """The hidden states as the input of all shards of the output layer.

    The backward adds up the parts of their gradient.
    """

    @staticmethod
    def forward(ctx: object, hidden: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # a backward must not change what it is given
        dist.all_reduce(gradient)
        return gradient


class Model(nn.Module):
    """Predicts the next word from the one before: an embedding, a hidden layer, and logits of ``words`` classes."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(SEED)

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) / shape[-1] ** 0.5)

        self.embedding = normal(vocabulary_size, HIDDEN)
        self.hidden = normal(HIDDEN, HIDDEN)
        self.output = normal(vocabulary_size, HIDDEN)

    def states(self, previous: Tensor) -> Tensor:
        """Hidden states [B, HIDDEN] after the words ``previous`` [B]."""
        return torch.tanh(functional.linear(self.embedding[previous], self.hidden))

    def forward(self, previous: Tensor) -> Tensor:
        """Logits [B, words]."""
        return functional.linear(self.states(previous), self.output)


class ShardedModel(Model):
    """The same model with the output layer's rows for the words of this rank, and zeros up to an equal number."""

    def __init__(self, vocabulary_size: int, ranks: int, rank: int) -> None:
        super().__init__(vocabulary_size)
        rows = -(-vocabulary_size // ranks)
        own = self.output.detach()[rank * rows : (rank + 1) * rows]
        self.output = nn.Parameter(functional.pad(own, (0, 0, 0, rows - len(own))))

    def forward(self, previous: Tensor) -> Tensor:
        """Logits [B, rows] of this rank's words, padding included."""
        return functional.linear(_CopyToRanks.apply(self.states(previous)), self.output)


def batches(corpus: Corpus, steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Previous and following words, [size] int64 each, the same on every rank."""
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(steps):
        chosen = torch.randint(len(corpus), (size,), generator=generator).numpy()
        yield torch.from_numpy(corpus.previous[chosen]).long(), torch.from_numpy(corpus.following[chosen]).long()


def learn(model: nn.Module, loss_of: Loss, previous: Tensor, following: Tensor) -> float:
    """One step of gradient descent; returns the loss before it, in nats."""
    loss = loss_of(model(previous), following)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(LEARNING_RATE * parameter.grad)
            parameter.grad = None
    return loss.item()


def console_of_rank(rank: int) -> Console:
    """Return a console that prints on one rank only; the others print nothing, not even a live bar."""
    return make_console(EXAMPLE_WIDTH) if rank == 0 else Console(quiet=True, force_terminal=False)


def seconds_of(steps: int) -> float:
    """The time that the training takes on the simulator."""
    return _START + steps * _STEP


def train(console: Console, corpus: Corpus, steps: int, size: int) -> bool:
    """Train both models on the same words, show their losses, and return whether these agree."""
    ranks, rank, words = dist.get_world_size(), dist.get_rank(), corpus.vocabulary_size
    sharded, whole = ShardedModel(words, ranks, rank), Model(words)

    def sharded_loss(logits: Tensor, target: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy(logits, target, num_classes=words, inplace=True)

    rows, processes = len(sharded.output), "1 process" if ranks == 1 else f"{ranks} processes"
    padding = ranks * rows - words
    console.print(
        heading(
            "A vocabulary over processes: simulated, not hardware",
            "Shows an output layer that is spread over processes, and the loss over its shards.",
            f"{processes}, {words:,} words; {rows} rows of the output layer on each, {padding} of padding.",
            f"{counted(steps, 'step')} of {size} words; beside it the model in one piece, with F.cross_entropy.",
            takes(seconds_of(steps)),
        )
    )
    differences, shown, uniform = [], shown_steps(steps), math.log(words)
    with progress_bar(console) as progress:
        task = progress.add_task("training", total=steps, loss=uniform)
        for step, (previous, following) in enumerate(batches(corpus, steps, size), start=1):
            ours = learn(sharded, sharded_loss, previous, following)
            theirs = learn(whole, functional.cross_entropy, previous, following)
            differences.append(abs(ours - theirs))
            progress.update(task, advance=1, loss=ours)
            if step in shown:
                console.print(curve_line(step, {"sharded": ours, "in one piece": theirs}, uniform))
    largest = torch.tensor(differences).max().item()  # which is NaN if one is; Python's max may pass over it
    agrees = largest <= LARGEST_DIFFERENCE
    verdict = "[green]The losses agree[/]" if agrees else "[bold red]The losses differ[/]"
    console.print(f"{verdict}: they are at most {largest:.1e} nats apart at any step.")
    return agrees


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for the command line of this process."""
    return parse_steps(
        arguments,
        "torchrun --nproc_per_node 2 -m examples.vocab_parallel",
        "Train a small model whose output layer is spread over processes, beside the same in one piece.",
        STEPS,
        QUICK_STEPS,
        quick="few steps on a few pages of text",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; returns 0, 1 if the losses differ, or 2 if it cannot run like this."""
    options = parse_arguments(arguments)
    console = make_console(EXAMPLE_WIDTH)
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    if "RANK" not in os.environ:
        console.print("This takes several processes: torchrun --nproc_per_node 2 -m examples.vocab_parallel")
        return 2
    dist.init_process_group("gloo")
    try:
        corpus = read_corpus(limit=2000 if options.quick else 20000)
        agrees = train(console_of_rank(dist.get_rank()), corpus, options.steps, 64 if options.quick else 256)
        dist.barrier()  # so that no rank ends while another still talks to it
    finally:
        dist.destroy_process_group()
    return 0 if agrees else 1


def leave(code: int) -> NoReturn:
    """End the process with ``code``, but not the interpreter.

    After a collective has returned, a thread of gloo lets go of its state, and takes the lock of the interpreter for
    that. Where the interpreter is ending by then, it stops the thread, C++ does not allow that there, and the process
    aborts: once in a hundred runs, with PyTorch 2.13, also after ``destroy_process_group``.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
