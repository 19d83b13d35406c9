# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Recording of a launch while it runs, and the recorded launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from ..launch.containers import map_leaves
from ..launch.launchable import Launchable
from ..launch.prepared import PreparedLaunch
from ..launch.progress import launching
from ..launch.running import run_cores
from ..machine.observer import watching
from .recorder import Recorder
from .stream import Stream


class RecordedLaunch(NamedTuple):
    """A launch that was recorded.

    Attributes:
        result: the value that the kernel returned to its caller.
        stream: the instructions of the launch; None if no plan can be made of them.
        refusal: the reason why no plan can be made, if there is no stream.
        error: the mistake of the recorder that is this reason, or None.
        before: copies of some of the argument arrays as they were before the launch, by number.
    """

    result: Any
    stream: Stream | None
    refusal: str
    error: Exception | None
    before: dict[int, npt.NDArray[Any]]


def record_launch(
    kernel: Launchable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    arrays: Sequence[Any],
    before: dict[int, npt.NDArray[Any]] | None = None,
) -> RecordedLaunch:
    """Run a kernel instruction by instruction, and record its instructions.

    Args:
        kernel: the kernel to launch.
        args, kwargs: its arguments.
        arrays: the arrays among the arguments.
        before: copies of some of the arrays from before the launch, by number, to be kept with the recording.
    """
    recorder = Recorder()
    with watching(recorder):
        launched = PreparedLaunch(kernel, args, kwargs)
    numbers = {id(array): number for number, array in enumerate(arrays)}
    recorder.name_arguments(
        {storage.number: numbers[id(original)] for original, storage in launched.arrays if id(original) in numbers}
    )
    for run in launched.running:
        run.core.is_recorded = True
    has_ended = False
    try:
        with launching(kernel.__name__, [run.core for run in launched.running]):
            run_cores(launched.running)
        launched.check_loop_counts()
        has_ended = True
    finally:
        launched.conclude(has_ended)
    stream = recorder.stream(
        [run.core for run in launched.running],
        lambda convert: map_leaves(launched.running[0].result, "", lambda leaf, _: convert(leaf)),
    )
    return RecordedLaunch(launched.results(), stream, recorder.refusal, recorder.error, before or {})
