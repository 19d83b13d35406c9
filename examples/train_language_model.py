# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A small transformer learns English with the loss of nkilib.torch: ``python -m examples.train_language_model``.

The loss function is the one line that differs from a training with PyTorch alone. With ``--fused`` that line takes the
hidden states and the weight of the output layer, and no logits are computed. On the CPU the kernels are simulated;
``--device xla`` and ``--device neuron`` are for torch-neuronx, where this was never run.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from examples._corpus import QUICK_WORDS, Corpus, read_corpus
from examples._curve import curve_line, progress_bar, shown_steps
from examples._display import EXAMPLE_WIDTH, counted, heading, make_console, takes
from examples._language_training import Learner, LossFunction, Plan
from examples._learning import LAST_STEPS
from examples._loss_plot import draw_losses, fault_of, has_matplotlib
from examples._transformer import LanguageModel, Size
from nkilib.nki import NOT_SIMULATED, SIMULATED
from nkilib.torch import cross_entropy, linear_cross_entropy

OURS, PYTORCH = "loss", "F.cross_entropy"
# Nats that two trainings may be apart at any step. Float32 losses differ by some 1e-6, and do so over the 200 steps of
# the default; at learning rates above 1e-3, or over thousands of steps, training amplifies rounding.
LARGEST_DIFFERENCE = 1e-3
# Seconds on two cores: of the start, of a step, of a step with --quick; and how many times as long a step is with
# --compare.
_START, _STEP, _QUICK_STEP, _COMPARED = 4.0, 0.9, 0.05, 1.5
QUICK = Plan(steps=12, batch_size=2, learning_rate=3e-3, size=Size(context=32, width=32, heads=2, blocks=1))


def our_loss(model: LanguageModel, words: Tensor, following: Tensor) -> Tensor:
    """Return the mean loss over all positions, from logits [batch, length, V]."""
    return cross_entropy(model(words), following, class_dim=-1)


def fused_loss(model: LanguageModel, words: Tensor, following: Tensor) -> Tensor:
    """Return the same loss from hidden states [batch, length, width], without logits in memory."""
    return linear_cross_entropy(model.hidden(words), model.output.weight, following)


def pytorch_loss(model: LanguageModel, words: Tensor, following: Tensor) -> Tensor:
    """Return the same loss from PyTorch, which takes the positions in one dimension."""
    return F.cross_entropy(model(words).flatten(0, 1), following.flatten())


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for the command line of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.train_language_model",
        description="Train a small transformer on English text with nkilib.torch.cross_entropy.",
    )
    parser.add_argument(
        "--fused", action="store_true", help="output layer and loss in one, nkilib.torch.linear_cross_entropy"
    )
    parser.add_argument(
        "--device", choices=("cpu", "xla", "neuron"), default="cpu", help="cpu is the simulator (default)"
    )
    parser.add_argument(
        "--steps", type=int, help=f"of the optimizer (default {Plan.steps}, or {QUICK.steps} with --quick)"
    )
    parser.add_argument("--compare", action="store_true", help="train a second model with F.cross_entropy")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the loss curves (needs matplotlib)")
    parser.add_argument("--quick", action="store_true", help="a tiny model on a few pages, for a first look")
    options = parser.parse_args(arguments)
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    if options.plot and not has_matplotlib():
        parser.error("--plot needs matplotlib: pip install '.[plot]' in the checkout")
    if options.plot and (fault := fault_of(options.plot)):
        parser.error(f"--plot {fault}")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    """The sizes and the steps of the training."""
    plan = QUICK if options.quick else Plan()
    return plan if options.steps is None else replace(plan, steps=options.steps)


def seconds_of(options: argparse.Namespace) -> float:
    """The time that the training takes on the simulator."""
    step = _QUICK_STEP if options.quick else _STEP
    return _START + plan_of(options).steps * step * (_COMPARED if options.compare else 1.0)


def open_device(name: str) -> tuple[torch.device, Callable[[], object]]:
    """Return the device, and a function to call after each step.

    Raises:
        RuntimeError: there is none of that name here.
    """
    if name == "cpu":
        if not SIMULATED:
            raise RuntimeError(NOT_SIMULATED)
        return torch.device("cpu"), lambda: None
    if SIMULATED:
        raise RuntimeError(f"--device {name} needs the Neuron SDK; without it nkilib simulates, on --device cpu")
    if name == "xla":
        import torch_xla

        return torch_xla.device(), torch_xla.sync  # runs what the step has recorded
    return torch.device("neuron"), lambda: None


def train(
    console: Console,
    corpus: Corpus,
    plan: Plan,
    functions: Mapping[str, LossFunction],
    device: torch.device,
    end_step: Callable[[], object],
) -> dict[str, list[float]]:
    """Train a model with each loss function on the same batches; returns their losses, step by step."""
    learners = {name: Learner(function, corpus.vocabulary_size, plan, device) for name, function in functions.items()}
    losses: dict[str, list[Tensor]] = {name: [] for name in functions}
    shown, uniform = shown_steps(plan.steps), math.log(corpus.vocabulary_size)
    with progress_bar(console) as progress:
        task = progress.add_task("training", total=plan.steps, loss=uniform)
        for step, batch in enumerate(plan.batches(corpus), start=1):
            words, following = (tensor.to(device) for tensor in batch)
            for name, learner in learners.items():
                losses[name].append(learner.step(words, following))
                end_step()
            progress.update(task, advance=1)
            if step in shown:  # reading a loss waits for the device, so it is read for these steps alone
                latest = {name: float(of_steps[-1]) for name, of_steps in losses.items()}
                progress.update(task, loss=latest[OURS])
                console.print(curve_line(step, latest, uniform))
    return {name: torch.stack(of_steps).tolist() for name, of_steps in losses.items()}


def report(console: Console, losses: Mapping[str, Sequence[float]]) -> bool:
    """Print how the training ended; return whether it agrees with PyTorch's, if that was requested."""
    last = losses[OURS][-LAST_STEPS:]
    console.print(f"Mean loss of the last {counted(len(last), 'step')}: {math.fsum(last) / len(last):.4f} nats.")
    if PYTORCH not in losses:
        return True
    ours, theirs = (torch.tensor(losses[name], dtype=torch.float64) for name in (OURS, PYTORCH))
    difference = (ours - theirs).abs().max().item()  # NaN if one is, where Python's max may pass over it
    agrees = difference <= LARGEST_DIFFERENCE
    colour, verdict = ("green", "follows") if agrees else ("bold red", "leaves")
    console.print(
        f"[{colour}]The training {verdict} that with F.cross_entropy:[/] losses differ by at most {difference:.1e}."
    )
    return agrees


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return 0, or 1 if the losses differ from those of F.cross_entropy, or 2 if the device is missing."""
    options = parse_arguments(arguments)
    console = make_console(EXAMPLE_WIDTH)
    try:
        device, end_step = open_device(options.device)
    except (ImportError, RuntimeError) as error:
        console.print(f"{error}", style="bold red", markup=False)
        return 2
    plan = plan_of(options)
    functions = {OURS: fused_loss if options.fused else our_loss}
    if options.compare:
        functions[PYTORCH] = pytorch_loss
    corpus = read_corpus(limit=QUICK_WORDS if options.quick else None)
    marks = {
        "uniform guess, ln V": math.log(corpus.vocabulary_size),
        "unigram entropy": corpus.unigram_entropy(),
    }
    model = f"{counted(plan.size.blocks, 'block')} of width {plan.size.width}, context {plan.size.context}"
    console.print(
        heading(
            f"A transformer learns English with nkilib.torch.{'linear_' if options.fused else ''}cross_entropy",
            "Shows a training loop: only its loss function is not PyTorch's.",
            f"Text: pydoc_data.topics of this Python, {len(corpus) + 1:,} words, {corpus.vocabulary_size:,} distinct.",
            f"Model: {model}; {counted(plan.steps, 'step')} of {counted(plan.batch_size, 'window')}, AdamW, float32.",
            "Device: " + ("cpu, kernels simulated, not hardware." if options.device == "cpu" else options.device),
            *(f"To compare, {name}: {level:.4f} nats." for name, level in marks.items()),
            takes(seconds_of(options)) if options.device == "cpu" else "Nobody has timed it there.",
        )
    )
    start = time.perf_counter()
    losses = train(console, corpus, plan, functions, device, end_step)
    agrees = report(console, losses)
    if options.plot:
        draw_losses(options.plot, losses, marks)
        console.print(f"Wrote {options.plot}.", soft_wrap=True)
    console.print(f"{time.perf_counter() - start:.1f} s in all.")
    return 0 if agrees else 1


if __name__ == "__main__":
    raise SystemExit(main())
