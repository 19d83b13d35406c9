# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors over real vocabularies and many tunings: ``python -m benchmarks.sweep`` or ``make sweep``.

Every error is shown as a share of what is allowed against float64; a share above 100% ends the sweep with exit code 1.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks._cross_entropy import CORES, Case, Tuning, backward, forward
from benchmarks._inputs import DTYPES, HARD_EVERY, fill, make_logits, make_targets
from examples._display import heading, make_console
from nkilib import simulator
from nkilib.experimental.loss.bounds import error_over_bound, forward_bounds, gradient_bound
from nkilib.experimental.loss.reference import gradient_of_rows, gradient_scale, row_statistics
from nkilib.nki import NOT_SIMULATED, SIMULATED

THREADS = 2
SEED = 1
# Elements of a block of rows that is checked at once, 2 MiB in float64: small enough to stay near the cache.
BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Shares:
    """Largest error of each result over what is allowed at its element, and what the launches took.

    Attributes:
        loss, lse, gradient: at most 1 is right; NaN counts as wrong.
        forward_seconds, backward_seconds: the seconds of the simulation.
    """

    loss: float
    lse: float
    gradient: float
    forward_seconds: float
    backward_seconds: float

    @property
    def within_bounds(self) -> bool:
        return all(share <= 1.0 for share in (self.loss, self.lse, self.gradient))


def refusal(case: Case, tuning: Tuning) -> str | None:
    """Return the kernels' reason for not accepting ``tuning`` for ``case``, in their own words; None if they accept it.

    The check uses one row per core, because the number of rows is no reason to reject. An assertion that fails before
    the first instruction is a rejection; a later one is a defect and is raised.
    """
    logits = np.zeros((CORES, case.vocabulary), case.dtype)
    targets = np.zeros(CORES, np.int32)
    lse = np.zeros(CORES, np.float32)
    for launch in (
        lambda: forward(logits, targets, tuning),
        lambda: backward(logits, targets, lse, tuning, inplace=True),
    ):
        with simulator.recording() as record:
            try:
                launch()
            except AssertionError as error:
                if sum(record.instruction_counts.values()) > 0:
                    raise
                return str(error)
    return None


def measure_errors(case: Case, tuning: Tuning) -> Shares:
    """Run forward and backward on mixed inputs, the gradient in place, and compare row blocks with float64.

    The logits are overwritten by the gradient and made again block by block for the comparison.
    """
    logits = make_logits(case.rows, case.vocabulary, case.dtype, SEED, mixed=True)
    targets = make_targets(case.rows, case.vocabulary, SEED)
    start = time.perf_counter()
    loss, lse = forward(logits, targets, tuning)
    middle = time.perf_counter()
    gradient = backward(logits, targets, lse, tuning, inplace=True)
    end = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        shares = list(pool.map(_BlockCheck(case, targets, loss, lse, gradient), _row_blocks(case)))
    worst = np.max(shares, axis=0)  # np.max keeps NaN, where max() may drop it
    return Shares(float(worst[0]), float(worst[1]), float(worst[2]), middle - start, end - middle)


def _row_blocks(case: Case) -> Iterator[slice]:
    step = max(1, BLOCK_ELEMENTS // case.vocabulary)
    for start in range(0, case.rows, step):
        yield slice(start, min(start + step, case.rows))


class _BlockCheck:
    """Compares the rows of a block with float64; one instance serves several threads."""

    def __init__(
        self, case: Case, targets: np.ndarray, loss: np.ndarray, lse: np.ndarray, gradient: np.ndarray
    ) -> None:
        self._case = case
        self._targets = targets
        self._loss = loss
        self._lse = lse
        self._gradient = gradient
        self._scale = gradient_scale("mean", case.rows)
        self._of_thread = threading.local()

    def __call__(self, rows: slice) -> tuple[float, float, float]:
        """Largest shares of loss, log-sum-exp and gradient in ``rows``."""
        logits = self._buffer(rows.stop - rows.start)
        fill(logits, SEED, first_row=rows.start, mixed=True)
        targets, lse, dtype = self._targets[rows], self._lse[rows], self._case.dtype
        statistics = row_statistics(logits, targets, dtype)
        loss_bound, lse_bound = forward_bounds(statistics, self._loss.dtype, lse.dtype)
        inputs = (logits, targets, lse, self._scale, dtype)
        gradient_share = error_over_bound(
            self._gradient[rows], gradient_of_rows(*inputs), gradient_bound(*inputs, self._gradient.dtype)
        )
        return (
            float(error_over_bound(self._loss[rows], statistics.loss, loss_bound).max()),
            float(error_over_bound(lse, statistics.lse, lse_bound).max()),
            float(gradient_share.max()),
        )

    def _buffer(self, rows: int) -> np.ndarray:
        """A [rows, V] array of this thread's own, made once."""
        if not hasattr(self._of_thread, "logits"):
            step = max(1, BLOCK_ELEMENTS // self._case.vocabulary)
            self._of_thread.logits = np.empty((step, self._case.vocabulary), self._case.dtype)
        return self._of_thread.logits[:rows]


VOCABULARIES = (1, 2, 507, 32000, 32128, 50257, 129280, 151936, 201088, 202408)
ROWS = 512
TARGET = "trn2"
QUICK_VOCABULARIES = (1, 507, 32128)
QUICK_ROWS = 16
COLUMNS = {"V": 7, "dtype": 6, "tuning": 12, "loss": 8, "lse": 8, "gradient": 9, "forward": 9, "backward": 9}


@dataclass
class Count:
    """Combinations that were run, those of them beyond a bound, and those that the kernels do not take."""

    run: int = 0
    exceeded: int = 0
    skipped: int = 0


def tunings(vocabulary: int) -> tuple[Tuning, ...]:
    """Return the tilings to try for a vocabulary, whether the kernels accept them or not."""
    small = Tuning(128, min(vocabulary, 8192))
    return Tuning(64, 32128), Tuning(64, 65535), Tuning(128, 16384), Tuning(64, 32768), small


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep",
        description="Hold the simulated forward and backward on two cores against float64 for the vocabularies of "
        "known models and several tunings. Prints what was skipped and why.",
        epilog="The exit code is 1 if an error exceeds what is allowed.",
    )
    parser.add_argument("--rows", type=int, help=f"rows of logits, N (default {ROWS})")
    parser.add_argument(
        "--vocabularies", type=int, nargs="+", metavar="V", help="default: " + " ".join(map(str, VOCABULARIES))
    )
    parser.add_argument("--quick", action="store_true", help="few rows and vocabularies, to see that it works")
    options = parser.parse_args(arguments)
    if options.rows is None:
        options.rows = QUICK_ROWS if options.quick else ROWS
    if options.vocabularies is None:
        options.vocabularies = list(QUICK_VOCABULARIES if options.quick else VOCABULARIES)
    if min(options.rows, *options.vocabularies) < 1:
        parser.error("--rows and --vocabularies must be positive")
    return options


def combinations(rows: int, vocabularies: Sequence[int]) -> Iterator[tuple[Case, Tuning]]:
    """Everything that is tried, in the order of the output."""
    for vocabulary in vocabularies:
        for dtype_name in DTYPES:
            for tuning in tunings(vocabulary):
                yield Case(rows, vocabulary, dtype_name), tuning


def print_header(console: Console) -> None:
    """The titles of the columns, printed once."""
    console.print(_line([Text(title, style="bold") for title in COLUMNS]))


def print_shares(console: Console, case: Case, tuning: Tuning, shares: Shares) -> None:
    """One line of results."""
    errors = (_share(share) for share in (shares.loss, shares.lse, shares.gradient))
    seconds = (Text(f"{value:.2f}") for value in (shares.forward_seconds, shares.backward_seconds))
    console.print(_line([*_names(case, tuning), *errors, *seconds]))


def print_refusal(console: Console, case: Case, tuning: Tuning, reason: str) -> None:
    """One line for a combination that the kernels do not take, with their reason."""
    cells = [f"{case.vocabulary:>7}", f"{case.dtype_name:<6}", f"{tuning!s:<12}"]
    line = Text(" ".join(cells)).append("  skipped: ", style="yellow").append(" ".join(reason.split()), style="dim")
    console.print(line, soft_wrap=True)


def run_all(console: Console, todo: Iterable[tuple[Case, Tuning]]) -> Count:
    """Measure every combination that the kernels take, printing one line for each."""
    count = Count()
    for case, tuning in todo:
        reason = refusal(case, tuning)
        if reason is not None:
            count.skipped += 1
            print_refusal(console, case, tuning, reason)
            continue
        with console.status(f"{case} {tuning}"):
            shares = measure_errors(case, tuning)
        count.run += 1
        count.exceeded += not shares.within_bounds
        print_shares(console, case, tuning, shares)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep; returns 0, or 1 if a bound was exceeded, or 2 if there is no simulator to measure."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    console.print(
        heading(
            "nkilib sweep: errors of the simulated kernels against float64, not hardware",
            f"N = {options.rows}, two cores of a {TARGET}, gradient of the mean loss in place, float32 log-sum-exp.",
            f"Normal logits of spread 3; every {HARD_EVERY}th row is hard: one logit far above, values to +-1e4, "
            "-inf entries, all equal.",
            "Shares are the largest error over what is allowed at its element; rounding to bf16 alone takes up to 98%.",
            "Tuning: positions_per_batch x chunk_size. Seconds are those of the simulation.",
        )
    )
    print_header(console)
    # Stated here, so that the environment does not change what is measured.
    with simulator.using(target=TARGET, precise_fp=True, uninitialized="error"):
        count = run_all(console, combinations(options.rows, options.vocabularies))
    verdict = (
        f"[bold red]{count.exceeded} beyond the bounds[/]" if count.exceeded else "[green]all within the bounds[/]"
    )
    console.print(f"{count.run} combinations run, {verdict}; {count.skipped} skipped, for the reasons given.")
    return 1 if count.exceeded else 0


def _names(case: Case, tuning: Tuning) -> list[Text]:
    return [Text(str(case.vocabulary)), Text(case.dtype_name), Text(str(tuning))]


def _share(share: float) -> Text:
    return Text(f"{share:.1%}", style="green" if share <= 1.0 else "bold red")


def _line(cells: Sequence[Text]) -> Table:
    """A row of the running table: columns of fixed width line up without all rows being known."""
    grid = Table.grid(padding=(0, 1))
    for title, width in COLUMNS.items():
        grid.add_column(width=width, justify="left" if title in ("dtype", "tuning") else "right")
    grid.add_row(*cells)
    return grid


if __name__ == "__main__":
    raise SystemExit(main())
