# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches as they always ran beside their replay: results and written arguments, bit by bit, on several data.

:data:`OTHERS` makes other data of the same shapes and types.

NaN equals NaN, whatever its sign and payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.simulator import using
from nkilib.simulator.launch.arguments import as_numpy, is_torch, leaves_of, map_leaves
from nkilib.simulator.replay.errors import ReplayFailed, Unplannable
from nkilib.simulator.replay.launch import Replay
from nkilib.simulator.replay.recorder import record_launch

Array = npt.NDArray[Any]

# Where arithmetic is at its edges; rounded to the type, in which some are infinite or 0.
_HARD: Final = (np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -1e-44, 1e30, -1e30, 3e38, 88.8, -103.9, 65504.0)
# One of so many elements becomes a hard one, and at least one does.
_RARITY: Final = 97
_SEED: Final = 20
_FACTORS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, -1.0)


def is_floating(array: Array) -> bool:
    """Whether its elements are floating-point numbers, those of ml_dtypes among them."""
    try:
        ml_dtypes.finfo(array.dtype)
    except (ValueError, TypeError):
        return False
    return True


def permuted(array: Array) -> Array:
    """The same elements in another order: indices and lengths stay legal ones."""
    rng = np.random.default_rng((_SEED, array.size))
    return np.array(array).reshape(-1)[rng.permutation(array.size)].reshape(array.shape)


def redrawn(array: Array) -> Array:
    """Floating-point numbers in another order, some of them times another factor; integers in another order."""
    if not is_floating(array):
        return permuted(array)
    rng = np.random.default_rng((_SEED + 1, array.size))
    factors = rng.choice(_FACTORS, array.shape)
    return np.asarray(permuted(array).astype(np.float32) * factors, array.dtype)


def hardened(array: Array) -> Array:
    """Redraw, with infinities, NaN, zeros of both signs, denormal and very large numbers among the values."""
    values = redrawn(array)
    if not is_floating(array) or not array.size:
        return values
    rng = np.random.default_rng((_SEED + 2, array.size))
    flat = values.reshape(-1)
    places = rng.choice(array.size, max(1, array.size // _RARITY), replace=False)
    with np.errstate(all="ignore"):
        flat[places] = rng.choice(_HARD, len(places)).astype(np.float32).astype(array.dtype)
    return flat.reshape(array.shape)


OTHERS: Final[dict[str, Callable[[Array], Array]]] = {
    "permuted data": permuted,
    "other data": redrawn,
    "hard data": hardened,
}


@dataclass(frozen=True)
class Outcome:
    """The results and arrays that a kernel left behind.

    Attributes:
        returned: its results; the number of an argument where that is what it returned.
        arguments: the arrays that it was given, as it left them.
        error: why it ended without a result; empty if it did not.
    """

    returned: list[Array | int]
    arguments: list[Array]
    error: str = ""


@dataclass
class Report:
    """How the launches of a kernel went.

    Attributes:
        refusal: why there is no plan; empty if there is one.
        fallbacks: by name of the data, why the launch had to run as it always does.
        replayed: names of the data on which it was replayed.
        instructions: the number of instructions of the launch that was planned.
        differences: where the bits are others, one line each.
    """

    refusal: str = ""
    fallbacks: dict[str, str] = field(default_factory=dict)
    replayed: list[str] = field(default_factory=list)
    instructions: int = 0
    differences: list[str] = field(default_factory=list)

    def check(self) -> Report:
        """Itself, if all bits are the same."""
        if self.differences:
            raise AssertionError("\n".join(self.differences))
        return self


def both_ways(kernel: Any, *args: Any, **kwargs: Any) -> Report:
    """Launch a kernel as always and replayed, on these arguments and on others like them.

    Raises:
        AssertionError: naming data, array and first byte, if the bits differ or an argument came to harm.
    """
    return compare(kernel, args, kwargs).check()


def compare(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], data: Sequence[str] = tuple(OTHERS)) -> Report:
    """Do the same as `both_ways`, and return the report, which holds the differences.

    Args:
        kernel: the kernel to launch.
        args, kwargs: its arguments.
        data: names of the other data.
    """
    report = Report()
    originals = arrays_in((args, kwargs))
    expected = run_as_always(kernel, args, kwargs, originals)
    replay = _planned(kernel, args, kwargs, originals, expected, report)
    if replay is None:
        return report
    report.instructions = replay.plan.instructions
    _compare(replay, "the recorded data", originals, expected, report)
    for name in data:
        changed = [_like(original, OTHERS[name](as_numpy(original, ""))) for original in originals]
        _compare(replay, name, changed, run_as_always(kernel, args, kwargs, originals, changed), report)
    _compare(replay, "the recorded data once more", originals, expected, report)
    for name in ("the recorded data", "the recorded data once more"):
        if name in report.fallbacks:
            report.differences.append(f"{name}: the replay failed: {report.fallbacks[name]}")
    return report


def _planned(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], originals: list[Any], expected: Outcome, report: Report
) -> Replay | None:
    """A plan of two recordings, which run as always while they are recorded."""
    streams = []
    for _ in range(2):
        inputs = [_copy(original) for original in originals]
        recorded = record_launch(kernel, *_with(args, kwargs, originals, inputs), inputs)
        if recorded.error is not None:
            raise recorded.error
        outcome = _outcome(recorded.result, inputs, inputs)
        report.differences += _differences("while it is recorded", expected, outcome)
        if recorded.stream is None:
            report.refusal = recorded.refusal
            return None
        streams.append(recorded.stream)
    difference = streams[0].differs_from(streams[1])
    if difference:
        report.refusal = f"two launches differ: {difference}"
        return None
    try:
        return Replay(streams[1], originals)
    except Unplannable as error:
        report.refusal = str(error)
        return None


def _compare(replay: Replay, name: str, data: Sequence[Any], expected: Outcome, report: Report) -> None:
    inputs = [_copy(item) for item in data]
    before = [_bits(as_numpy(argument, "")) for argument in inputs]
    try:
        returned = replay.run([as_numpy(argument, "") for argument in inputs], inputs)
    except ReplayFailed as error:
        report.fallbacks[name] = str(error)
        for number, (element, bits) in enumerate(zip(inputs, before, strict=True)):
            if _bits(as_numpy(element, "")).tobytes() != bits.tobytes():
                report.differences.append(f"{name}: the replay failed and has written argument {number}")
        return
    if expected.error:
        report.differences.append(f"{name}: replayed, where the launch raises {expected.error}")
        return
    report.replayed.append(name)
    report.differences += _differences(name, expected, _outcome(returned, inputs, inputs))


def run_as_always(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], originals: list[Any], data: list[Any] | None = None
) -> Outcome:
    """Return what a launch leaves behind, on copies of its arguments or of other arrays in their place."""
    inputs = [_copy(original) for original in (originals if data is None else data)]
    args, kwargs = _with(args, kwargs, originals, inputs)
    try:
        with using(replay=False), np.errstate(all="ignore"):
            returned = kernel(*args, **kwargs)
    except Exception as error:
        if data is None:
            raise
        return Outcome([], [as_numpy(argument, "") for argument in inputs], f"{type(error).__name__}: {error}")
    return _outcome(returned, inputs, inputs)


def _outcome(returned: Any, inputs: list[Any], arguments: list[Any]) -> Outcome:
    numbers = {id(argument): number for number, argument in enumerate(inputs)}
    results = [numbers.get(id(item), item) for item in arrays_in(returned)]
    return Outcome(
        [result if isinstance(result, int) else as_numpy(result, "") for result in results],
        [as_numpy(argument, "") for argument in arguments],
    )


def _differences(name: str, expected: Outcome, outcome: Outcome) -> list[str]:
    if len(expected.returned) != len(outcome.returned):
        return [f"{name}: {len(outcome.returned)} results instead of {len(expected.returned)}"]
    lines = []
    for kind, wanted, got in (
        ("result", expected.returned, outcome.returned),
        ("argument", expected.arguments, outcome.arguments),
    ):
        for number, (one, other) in enumerate(zip(wanted, got, strict=True)):
            difference = _difference(one, other)
            if difference:
                lines.append(f"{name}: {kind} {number} {difference}")
    return lines


def _difference(expected: Array | int, result: Array | int) -> str:
    if isinstance(expected, int) or isinstance(result, int):
        is_same = isinstance(expected, int) and isinstance(result, int) and expected == result
        return "" if is_same else "is an argument in one way only, or another one"
    if expected.shape != result.shape or expected.dtype != result.dtype:
        return f"is {result.shape} {result.dtype} instead of {expected.shape} {expected.dtype}"
    unequal = np.flatnonzero(_bits(expected) != _bits(result)) // max(1, expected.dtype.itemsize)
    if not unequal.size:
        return ""
    unequal = _but_nans(np.unique(unequal), expected, result)
    if not unequal.size:
        return ""
    at = np.unravel_index(int(unequal[0]), expected.shape) if expected.shape else ()
    count = len(unequal)
    where = tuple(map(int, at))
    return f"differs at {count} of {expected.size} elements, first at {where}: {result[at]} instead of {expected[at]}"


def _but_nans(places: npt.NDArray[np.int64], expected: Array, result: Array) -> npt.NDArray[np.int64]:
    """The places without those where both are NaN.

    Which sign the product or the sum of two NaN has is not numpy's to say: it changes with the strides of the result,
    and within a row with the place of an element.
    """
    if not is_floating(expected):
        return places
    flat = [np.ascontiguousarray(array).reshape(-1)[places] for array in (expected, result)]
    return places[~(np.isnan(flat[0]) & np.isnan(flat[1]))]


def _bits(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def arrays_in(value: Any) -> list[Any]:
    """The arrays and tensors in arguments or results, each once."""
    results = [leaf for leaf in leaves_of(value) if isinstance(leaf, np.ndarray) or is_torch(leaf)]
    return list({id(result): result for result in results}.values())


def _copy(array: Any) -> Any:
    """Return a copy with the same strides."""
    if is_torch(array):
        return array.detach().clone().requires_grad_(array.requires_grad)
    copied = array.copy(order="K")
    copied.flags.writeable = array.flags.writeable
    return copied


def _like(array: Any, values: Array) -> Any:
    """A copy of an argument with other values."""
    if is_torch(array):
        copied = array.detach().clone()
        as_numpy(copied, "")[...] = values
        return copied.requires_grad_(array.requires_grad)
    copied = array.copy(order="K")
    copied[...] = values
    copied.flags.writeable = array.flags.writeable
    return copied


def _with(
    args: tuple[Any, ...], kwargs: dict[str, Any], originals: list[Any], inputs: list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with other arrays in the place of their own."""
    by_original = {id(original): other for original, other in zip(originals, inputs, strict=True)}
    replaced: Callable[[Any, str], Any] = lambda leaf, _: by_original.get(id(leaf), leaf)  # noqa: E731
    return map_leaves(args, "", replaced), map_leaves(kwargs, "", replaced)


def reasons(reports: Iterator[Report] | Sequence[Report]) -> dict[str, int]:
    """How often each reason kept a launch from being planned; "planned" counts the others."""
    counts: dict[str, int] = {}
    for report in reports:
        key = report.refusal or "planned"
        counts[key] = counts.get(key, 0) + 1
    return counts


def check_planned(report: Report, name: str) -> None:
    """A launch was replayed, on the recorded data too."""
    assert not report.refusal, f"{name} is not planned: {report.refusal}"
    assert report.instructions > 0 and "the recorded data" in report.replayed
