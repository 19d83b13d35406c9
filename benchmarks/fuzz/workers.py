# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The processes that draw calls until the time is over, each on one thread: :func:`lines_of` runs a :class:`Plan`, and
:func:`written` makes a line of the log.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from benchmarks.fuzz.draw import LIMITS
from benchmarks.fuzz.one_call import Line, run_call

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Plan:
    """The settings of a run.

    Attributes:
        seed: seed of all calls.
        seconds: time after which no call begins, except the first one of each worker.
        workers: number of processes; worker w runs the calls first + w, first + w + workers, ...
        first: number of the first call.
        limits: name of the limits of sizes.
        functions: names of the functions to draw; none: all.
    """

    seed: int
    seconds: float
    workers: int
    first: int = 0
    limits: str = "middle"
    functions: tuple[str, ...] = ()


@contextmanager
def one_rank() -> Iterator[None]:
    """A process group of this process alone, for the functions of vocabularies that are spread over ranks."""
    if dist.is_initialized():
        yield
        return
    with TemporaryDirectory() as directory:
        dist.init_process_group("gloo", init_method=f"file://{Path(directory) / 'store'}", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def lines_of(plan: Plan) -> Iterator[Line]:
    """The calls of all workers, as they end."""
    if plan.workers == 1:
        yield from _drawn(plan, 0)
        return
    context = multiprocessing.get_context("spawn")
    queue: Queue[Line | None] = context.Queue()
    for name in _ONE_THREAD:  # read where libraries load, which is in the new processes
        os.environ[name] = "1"
    workers = [context.Process(target=_work, args=(plan, number, queue)) for number in range(plan.workers)]
    for worker in workers:
        worker.start()
    yield from _received(queue, workers)
    for worker in workers:
        worker.join()
    ended = [worker.exitcode for worker in workers if worker.exitcode]
    if ended:
        raise RuntimeError(f"fuzz: {len(ended)} of {len(workers)} workers ended with exit codes {ended}; take fewer")


def _received(queue: Queue[Line | None], workers: Sequence[BaseProcess]) -> Iterator[Line]:
    """Yield lines until all workers have said that they are done, or have died."""
    done = 0
    while done < len(workers):
        try:
            line = queue.get(timeout=5.0)
        except Empty:
            if not any(worker.is_alive() for worker in workers):
                return
            continue
        if line is None:
            done += 1
        else:
            yield line


def written(line: Line) -> str:
    """A line of the log."""
    return json.dumps({**asdict(line), "command": line.command}, default=str)


def _work(plan: Plan, number: int, queue: Queue[Line | None]) -> None:
    try:
        for line in _drawn(plan, number):
            queue.put(line)
    finally:
        queue.put(None)


def _drawn(plan: Plan, number: int) -> Iterator[Line]:
    """Yield at least one call, however slow the machine is.

    A run that compares nothing must not look like a good one.
    """
    torch.set_num_threads(1)
    call = plan.first + number
    with one_rank():
        end = time.monotonic() + plan.seconds  # its start takes seconds on some machines
        while True:
            yield run_call(plan.seed, call, LIMITS[plan.limits], plan.functions)
            call += plan.workers
            if time.monotonic() >= end:
                return
