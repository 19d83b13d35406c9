# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels at work on this computer: ``python -m examples.demo`` or ``make demo``.

First the forward and the backward of two real vocabularies are compared with float64; then a bigram model learns
English text with loss and gradient from the kernels. All of it is simulated: no Trainium is used.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from rich.console import Console

from examples._corpus import QUICK_WORDS, read_corpus
from examples._display import EXAMPLE_WIDTH, heading, make_console, takes
from examples._learning import outcome_table, train
from examples._measure import Case, measure
from examples._report import is_within_bounds, measurement_tables
from examples._training import Schedule
from nkilib import simulator
from nkilib.nki import NOT_SIMULATED, SIMULATED, nl

TARGET = "trn2"
# Seconds on two cores: of the first part, of a passage through the text, and of all with --quick.
_ACCURACY, _PASS, _QUICK = 5.0, 15.0, 1.0
# Rows of logits in the short form, which runs every part of the demo in about a second.
QUICK_POSITIONS = 4


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for the command line of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Run the cross-entropy kernels on two simulated NeuronCores: accuracy and work for two "
        "vocabularies, then training of a bigram model on English text. No Trainium is needed or used.",
    )
    parser.add_argument("--quick", action="store_true", help="a few rows and a few pages of text, for a first look")
    parser.add_argument(
        "--passes", type=int, default=1, help="how often the training goes through the text (default 1)"
    )
    options = parser.parse_args(arguments)
    if options.passes < 1:
        parser.error(f"--passes must be at least 1, got {options.passes}")
    return options


def seconds_of(options: argparse.Namespace) -> float:
    """The time that the demo takes."""
    return _QUICK if options.quick else _ACCURACY + options.passes * _PASS


def cases(quick: bool) -> list[Case]:
    """The problems of the first part."""
    dtypes = {"bf16": nl.bfloat16, "fp32": nl.float32}
    sizes = [("Llama-2", 128, 32000, 32, 16000), ("GPT-2", 32, 50257, 16, 32768)]
    if quick:
        sizes = [(name, QUICK_POSITIONS, v, QUICK_POSITIONS // 2, chunk) for name, _, v, _, chunk in sizes]
    return [Case(*size, dtype_name, dtype) for size in sizes for dtype_name, dtype in dtypes.items()]


def show_accuracy(console: Console, quick: bool) -> bool:
    """First part; returns whether every result is within its bound."""
    measured = cases(quick)
    console.print(
        heading(
            "1. Cross-entropy forward and backward, compared with float64",
            *dict.fromkeys(case.size for case in measured),
            "Random logits (standard deviation 3), mean loss, log-sum-exp in float32.",
            "An error is also shown as a share of the largest that is allowed: 100% or less is",
            "right. Rounding the exact result to bf16 alone can take 98%.",
        )
    )
    measurements = []
    for case in measured:
        with console.status(f"{case.name} {case.dtype_name}"):
            measurements.append(measure(case))
    console.print(measurement_tables(measurements))
    return is_within_bounds(measurements)


def show_learning(console: Console, quick: bool, passes: int) -> bool:
    """Second part; returns whether the training ended where float64 did."""
    corpus = read_corpus(limit=QUICK_WORDS if quick else None)
    schedule = Schedule(passes=passes)
    console.print(
        heading(
            "2. A bigram model learns English, loss and gradient from the kernels alone",
            f"Text: pydoc_data.topics of this Python, {len(corpus) + 1:,} words, "
            f"{corpus.vocabulary_size:,} of them distinct.",
            f"{schedule.steps(corpus)} steps of up to {schedule.batch_size} words, row-wise Adagrad, float32.",
            "Beside it the same in float64.",
        )
    )
    outcome = train(console, corpus, schedule)
    console.print(outcome_table(outcome, corpus))
    return outcome.agrees


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0, or 1 if a result was not what float64 says, or 2 if there is no simulator to show."""
    options = parse_arguments(arguments)
    console = make_console(EXAMPLE_WIDTH)
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    start = time.perf_counter()
    console.print(
        heading(
            "nkilib demo: simulated, not hardware",
            "Shows cross-entropy kernels beside float64, and a model that learns with them.",
            f"They run on two NeuronCores of a {TARGET} in nkilib's simulator, on this CPU.",
            takes(seconds_of(options)),
        )
    )
    # Stated here, so that the environment does not change the demo; a read of unwritten memory would be a defect.
    with simulator.using(target=TARGET, precise_fp=True, uninitialized="error"):
        is_right = show_accuracy(console, options.quick)
        is_right = show_learning(console, options.quick, options.passes) and is_right
    verdict = "[green]All results agree with float64[/]" if is_right else "[bold red]Results differ from float64[/]"
    console.print(f"{verdict}, {time.perf_counter() - start:.1f} s in all.")
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
