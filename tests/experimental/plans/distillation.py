# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of distillation, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import GROUP_BATCHES_MAX
from nkilib.experimental.loss import distillation_backward, distillation_forward
from nkilib.experimental.loss.distillation import kernels
from nkilib.experimental.loss.distillation.host import (
    distillation_bound,
    distillation_gradient_bound,
    distillation_gradient_reference,
    distillation_reference,
)
from nkilib.experimental.loss.distillation.launch import Launch
from nkilib.experimental.loss.distillation.tiling import choose_distillation_tiling, gradient_group, mixture_plan
from nkilib.nki import nl
from nkilib.simulator import spec
from tests.experimental.loss.distillation.inputs import pair, upstream
from tests.experimental.plans.coverage import (
    Branches,
    Limits,
    PlanFamily,
    Size,
    assert_within,
    count_class,
    cut_class,
    on_core,
    result_of,
)

_POSITIONS = (1, 2, 129, 256, 257, 300, 1024, 4096, 5000, 32768, 65536, 65537, 131072)
_VOCABULARIES = (2, 100, 512, 513, 1000, 1409, 4096, 5000, 8192, 19712, 19713, 32000, 32128, 40832, 40833, 50257)
_LONG_VOCABULARIES = (65536, 100277, 128256, 151936, 202048, 262144)
_SAMPLED = ((1, 2, 257, 5000, 65537), (100, 1000, 5000, 32000, 50257, 128256))
_SHRUNK_POSITIONS = (1, 2, 129, 256, 257, 300, 4400)
_SHRUNK_VOCABULARIES = (2, 100, 256, 512, 513, 600, 700, 1000, 1100, 1400, 2000, 2600)
# Divergences either way have one plan; their mixture has another one.
_BETAS = {"divergence": (0.0, 1.0), "mixture": (0.5,)}
_SAVED = ("moment_hbm", "student_shift_hbm", "student_sum_hbm", "teacher_shift_hbm", "teacher_sum_hbm")


def _kernels(size: Size) -> tuple[Any, ...]:
    return (distillation_forward if size["direction"] == "forward" else distillation_backward,)


def launch_of(size: Size, **tiling: int) -> Launch:
    """The plan that the kernel makes; of a backward, whose forward fits as well."""
    if size["direction"] == "backward":
        launch_of({**size, "direction": "forward"}, **tiling)
    shape, dtype = (size["positions"], size["vocabulary"]), size["dtype"]
    arguments: dict[str, Any] = {"student_hbm": spec(shape, dtype), "teacher_hbm": spec(shape, dtype)}
    arguments |= {"beta": _BETAS[size["kernel"]][0], **tiling}
    kernel = distillation_forward
    if size["direction"] == "backward":
        kernel = distillation_backward
        arguments |= {name: spec(shape[:1], nl.float32) for name in (*_SAVED, "grad_loss_hbm")}
    launch: Launch = result_of(f"{kernels.__name__}._checked_launch", kernel, **arguments)
    return launch


def branches(size: Size) -> Branches:
    """Return the branches of the first core's plan, and whether the second one has rows."""
    with on_core(0, size["cores"]):
        launch = launch_of(size)
        parts, batches = launch.parts(), len(launch.batches())
    chunk_size, vocabulary = launch.tiling.chunk_size, size["vocabulary"]
    taken: Branches = {"direction": size["direction"], "kernel": size["kernel"]}
    taken["cores"] = "one" if size["cores"] == 1 else "two" if size["positions"] > 1 else "two, one without rows"
    chunks = div_ceil(vocabulary, chunk_size)
    if len(parts) > 1 or taken["cores"] != "two":
        # A part is a launch of its own, and how a core cuts up its rows does not depend on the other core. So what is
        # in a row is listed in full for one part on two cores, and whether it has chunks alone with all others.
        if len(parts) > 1:
            taken["parts"] = cut_class(len(parts), len({part.end - part.start for part in parts}) > 1)
        else:
            taken["batches"] = count_class(batches)
        return {**taken, "chunks": count_class(chunks)}
    taken["batches"] = count_class(batches)
    if not launch.is_mixed:
        taken["chunks"] = cut_class(chunks, vocabulary % chunk_size != 0)
        if size["direction"] == "forward":
            taken["has_samples"] = launch.has_samples
            taken["batches"] = count_class(div_ceil(batches, GROUP_BATCHES_MAX)) + " group of " + taken["batches"]
        return taken
    taken["chunks"] = count_class(chunks)
    if size["direction"] == "forward":
        plan = mixture_plan(vocabulary, chunk_size, launch.bytes_of_pair)
        group, taken["keeps_rows"] = plan.group, plan.keeps_rows
    else:
        group = gradient_group(chunk_size, launch.bytes_of_pair)
    taken["group"] = {2: "least", 8: "most"}.get(group, "between")
    taken["chunks_by_group"] = (
        "less than one" if batches * chunks < group else cut_class(2, batches * chunks % group != 0)
    )
    return taken


def _sizes(positions: tuple[int, ...], vocabularies: tuple[int, ...], dtypes: tuple[str, ...]) -> Iterator[Size]:
    for direction, kernel, dtype, rows, classes in product(
        ("forward", "backward"), _BETAS, dtypes, positions, vocabularies
    ):
        for cores in (1, 2):
            yield {
                "direction": direction,
                "kernel": kernel,
                "dtype": dtype,
                "positions": rows,
                "vocabulary": classes,
                "cores": cores,
            }


def sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of language models."""
    if wide:
        return _sizes(_POSITIONS, _VOCABULARIES + _LONG_VOCABULARIES, ("bfloat16", "float32"))
    return _sizes(*_SAMPLED, ("bfloat16", "float32"))


def shrunk_sizes() -> Iterator[tuple[Size, Limits]]:
    """Chunks of few columns."""
    for kilobytes in (6, 8, 10, 12, 16, 20, 28, 40):
        for size in _sizes(_SHRUNK_POSITIONS, _SHRUNK_VOCABULARIES, ("bfloat16", "float32")):
            if cost(size) <= 1.7e6:
                yield size, {"sbuf_bytes": kilobytes * 1024}
    for size in _sizes((129, 256, 257, 300, 512), (100, 300), ("bfloat16", "float32")):
        for limits in ({}, {"sbuf_bytes": 6 * 1024}, {"sbuf_bytes": 8 * 1024}):
            yield size, {**limits, "batches": 1}


def cost(size: Size) -> float:
    """Elements, and what a row costs by itself."""
    return float(size["positions"] * (size["vocabulary"] + 100))


def check(size: Size) -> None:
    """A launch with the chooser's tiling, within the derived bounds."""
    check_with_tiling(size)


def check_with_tiling(size: Size, **tiling: int) -> Any:
    """Launch with any tiling, and return losses or gradients. Rows whose maximum comes late are recomputed."""
    return [_check(size, beta, tiling) for beta in _BETAS[size["kernel"]]]


def _check(size: Size, beta: float, tiling: dict[str, int]) -> Any:
    student, teacher = pair(size["positions"], (size["positions"], size["vocabulary"]), (size["dtype"],) * 2)
    student[::5, -1] += 40.0
    options, cores = {"beta": beta, "temperature": 2.0}, size["cores"]
    results = distillation_forward[cores](student, teacher, **options, **tiling)
    exact = distillation_reference(student, teacher, **options)
    is_split = tiling.get("partitions_per_position", 1) > 1
    bound = distillation_bound(student, teacher, **options, is_split=is_split)
    assert_within(f"losses of {size}", results[0], exact, bound)
    if size["direction"] == "forward":
        return results[0]
    grad_loss = upstream(size["positions"])
    gradient = distillation_backward[cores](student, teacher, *results[1:], grad_loss, **options, **tiling)
    exact = distillation_gradient_reference(student, teacher, grad_loss, **options)
    bound = distillation_gradient_bound(student, teacher, grad_loss, exact, **options, is_split=is_split)
    assert_within(f"gradient of {size}", gradient, exact, bound)
    return gradient


def _layout_of(size: Size) -> dict[str, int]:
    """Return the number of partitions of a position that the chooser gives."""
    of_pair, is_mixed = 4 if size["dtype"] == "bfloat16" else 8, size["kernel"] == "mixture"
    chosen = choose_distillation_tiling(
        size["vocabulary"], of_pair, is_mixed, size["direction"] == "backward", size["positions"]
    )
    return {"partitions_per_position": chosen.partitions_per_position}


def layout_branches(size: Size) -> Branches:
    """Return the branches of the first core's plan with the chooser's number of partitions of a position."""
    with on_core(0, size["cores"]):
        launch = launch_of(size, **_layout_of(size))
        batches = launch.split_batches() if launch.is_split else []
    taken: Branches = {"direction": size["direction"], "kernel": size["kernel"]}
    if not batches:
        return {**taken, "layout": "one partition a position"}
    taken["cores"] = "one" if size["cores"] == 1 else "two" if size["positions"] > 1 else "two, one without rows"
    if taken["cores"] != "two":
        return {**taken, "layout": "split"}
    columns, chunk_size = launch.row_columns, launch.tiling.chunk_size
    chunks = cut_class(div_ceil(columns, chunk_size), columns % chunk_size != 0)
    tail = size["vocabulary"] % launch.tiling.partitions_per_position > 0
    return {**taken, "layout": "split", "batches": count_class(len(batches)), "chunks": chunks, "tail": tail}


_LAYOUT_POSITIONS = (1, 2, 31, 128, 130, 300, 520)
_LAYOUT_VOCABULARIES = (300, 513, 600, 1000, 1500, 2049, 4096, 32000, 50257)


def layout_sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of few positions."""
    return _sizes(_LAYOUT_POSITIONS, _LAYOUT_VOCABULARIES, ("bfloat16", "float32") if wide else ("bfloat16",))


def check_layout(size: Size) -> None:
    """A launch with the chooser's number of partitions of a position, within the derived bounds."""
    check_with_tiling(size, **_layout_of(size))


LAYOUTS = PlanFamily(
    name="distillation_layouts",
    kernels=_kernels,
    sizes=layout_sizes,
    branches=layout_branches,
    cost=cost,
    check=check_layout,
)

FAMILY = PlanFamily(
    name="distillation",
    kernels=_kernels,
    sizes=sizes,
    branches=branches,
    cost=cost,
    check=check,
    shrunk_sizes=shrunk_sizes,
)
