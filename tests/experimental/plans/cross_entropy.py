# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the cross-entropy kernels, plain and with options, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import batch_groups
from nkilib.core.rows.statistics import most_batches_of_group
from nkilib.core.rows.stream import num_chunks
from nkilib.experimental.loss import (
    Tiling,
    choose_tiling,
    cross_entropy_backward,
    cross_entropy_forward,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)
from nkilib.experimental.loss.cross_entropy.launch import (
    Classes,
    Launch,
    Layout,
    LossOptions,
    Options,
    UniformUpstream,
    Wanted,
    with_form,
)
from nkilib.experimental.loss.cross_entropy.layouts.batches import backward_batches, forward_batches
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss, extended_forward_reference
from nkilib.nki import nl
from nkilib.simulator import spec, using
from tests.experimental.loss.cross_entropy import extended_checks, loss_checks
from tests.experimental.plans.coverage import TYPES, Branches, Limits, PlanFamily, Size, count_class, cut_class, on_core

_POSITIONS = (1, 2, 3, 64, 128, 129, 256, 257, 300, 512, 1000, 1024, 2048, 4096, 4097, 8192, 32768, 65536, 131072)
_VOCABULARIES = (
    *(2, 100, 1000, 2048, 4096, 5000, 8192, 10000, 16000, 30522, 32000, 32128, 50257, 50304, 65536, 100277),
    *(128256, 129280, 151936, 202048, 256000, 262144),
)
_SAMPLED_POSITIONS = (1, 2, 129, 257, 1024, 4097, 32768)
_SAMPLED_VOCABULARIES = (2, 5000, 32128, 50257, 128256, 262144)
_SHRUNK_POSITIONS = (1, 2, 4, 255, 256, 257, 300, 512, 513, 600, 1025)
_SHRUNK_VOCABULARIES = (2, 60, 100, 250, 500, 700, 1000, 1400, 2000, 2100, 3000, 4000, 5000)
# What is asked for of the extended kernels.
OPTIONS: dict[str, LossOptions] = {
    "recipe": LossOptions(ignore_index=3, label_smoothing=0.1, logit_softcap=20.0, lse_square_scale=1e-3),
    "probabilities": LossOptions(label_smoothing=0.1, logit_softcap=20.0),
    "entropy": LossOptions(ignore_index=3),
}
# Further options of launches in other layouts.
_LAYOUT_OPTIONS = {
    "ignored": LossOptions(ignore_index=3),
    "smoothing": LossOptions(ignore_index=3, label_smoothing=0.1),
    "cap": LossOptions(ignore_index=3, logit_softcap=20.0),
}
_ALL_OPTIONS = {**OPTIONS, **_LAYOUT_OPTIONS}
_KERNELS = {
    (True, "forward"): cross_entropy_forward,
    (True, "backward"): cross_entropy_backward,
    (False, "forward"): extended_cross_entropy_forward,
    (False, "backward"): extended_cross_entropy_backward,
}
_WEIGHTED = ("recipe", "probabilities")


def _options_of(size: Size) -> Options:
    """Return the options of a launch, before its form is chosen."""
    name, vocabulary = size["options"], size["vocabulary"]
    classes = Classes(0, vocabulary, vocabulary)
    if name == "plain":
        return Options(classes, is_plain=True)
    wanted = Wanted(entropy=name == "entropy")
    return Options(classes, False, name in _WEIGHTED, name == "probabilities", _ALL_OPTIONS[name], wanted)


def _chosen(size: Size) -> Tiling:
    shape = size["positions"], size["vocabulary"]
    return choose_tiling(*shape, size["dtype"], size["direction"], size["target"], extended=size["options"] != "plain")


def tiling_of(size: Size) -> dict[str, int]:
    """Return the sizes that the chooser gives for one position a partition."""
    chosen = _chosen(size)
    return {"positions_per_batch": chosen.positions_per_batch, "chunk_size": chosen.chunk_size}


def _launch_of(size: Size) -> Launch:
    dtype = getattr(nl, size["dtype"])
    logits = spec((size["positions"], size["vocabulary"]), dtype)
    return Launch("plan", logits, spec((size["positions"],), nl.int32), None, **tiling_of(size), dtype=dtype)


def branches(size: Size) -> Branches:
    """Return the branches of the first core's plan, and whether the second one has rows."""
    cores, is_forward = size["cores"], size["direction"] == "forward"
    launch, options = _launch_of(size), _options_of(size)
    with using(target=size["target"]), on_core(0, cores):
        if is_forward:
            options = with_form(launch, options, None)
        batches = launch.batches()
        plan = options.forward_plan if is_forward else options.backward_plan
        sbuf, folding = launch.divided(plan, batches), None
        if is_forward and not options.with_shift:
            sbuf, folding = launch.divided_beside_folds(options, batches)
    first_size = div_ceil(sbuf.chunk_size, 2) if options.with_shift else sbuf.chunk_size
    chunks = num_chunks(launch.vocab_size, first_size, sbuf.chunk_size)
    taken: Branches = {
        "direction": size["direction"],
        "options": size["options"],
        "chunk_buffers": sbuf.chunk_buffers,
    }
    if is_forward:
        taken["form"] = "shift" if options.with_shift else "maximum" if folding is None else "folded maximum"
    if size["options"] != "plain":
        taken["chunks"] = count_class(chunks)
        taken["turns"] = sbuf.turns if plan.num_scratch else 0
        return taken
    groups = len(batch_groups(batches, most_batches_of_group(chunks))) if is_forward else min(2, len(batches))
    taken["groups"] = count_class(groups)
    taken["cores"] = "one" if cores == 1 else "two" if launch.num_positions > 1 else "two, one without rows"
    # A core's plan is that of a core of two with as many positions.
    if cores == 1 or launch.num_positions == 1:
        return {name: value for name, value in taken.items() if name != "chunk_buffers"}
    taken["chunks"] = cut_class(chunks, (launch.vocab_size - first_size) % sbuf.chunk_size != 0)
    return taken


def _sizes(
    positions: tuple[int, ...], vocabularies: tuple[int, ...], dtypes: tuple[str, ...], names: tuple[str, ...]
) -> Iterator[Size]:
    names_and_cores = [(name, cores) for name in names for cores in ((1, 2) if name == "plain" else (2,))]
    grid = product(("trn2", "trn3"), ("forward", "backward"), names_and_cores, dtypes, positions, vocabularies)
    for target, direction, (name, cores), dtype, rows, classes in grid:
        yield {
            "target": target,
            "direction": direction,
            "options": name,
            "cores": cores,
            "dtype": dtype,
            "positions": rows,
            "vocabulary": classes,
        }


def sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of language models."""
    names = ("plain", *OPTIONS)
    if wide:
        return _sizes(_POSITIONS, _VOCABULARIES, tuple(TYPES), names)
    return _sizes(_SAMPLED_POSITIONS, _SAMPLED_VOCABULARIES, ("bfloat16", "float32"), names)


def shrunk_sizes() -> Iterator[tuple[Size, Limits]]:
    """Few elements in partitions of a few kilobytes, where the usual ones would take long chunks."""
    for names, small_bytes in (("plain",), 8192), (tuple(OPTIONS), 12288):
        for kilobytes, shift in product((1, 2, 3, 4, 6, 8, 12, 16, 20), ({}, {"shift_columns": 400})):
            limits = {"sbuf_bytes": small_bytes + kilobytes * 1024, **shift}
            for size in _sizes(_SHRUNK_POSITIONS, _SHRUNK_VOCABULARIES, ("bfloat16", "float32"), names):
                if cost(size) <= 4.3e6:
                    yield size, limits


def cost(size: Size) -> float:
    """Elements, and what a row costs by itself."""
    return float(size["positions"] * (size["vocabulary"] + 100))


def logits_of(size: Size) -> Any:
    """Normal noise; some rows have their maximum in the last chunk, so that under a shift they are recomputed."""
    draw = np.random.default_rng(size["positions"] + size["vocabulary"])
    logits = 3.0 * draw.standard_normal((size["positions"], size["vocabulary"]), np.float32)
    logits[1::5, -1] += 50.0
    return logits.astype(TYPES[size["dtype"]])


def targets_of(size: Size) -> Any:
    """Draw the target classes."""
    return np.random.default_rng(5).integers(0, size["vocabulary"], size["positions"]).astype(np.int32)


def check(size: Size) -> None:
    """A launch with the chooser's tiling, within the derived bounds."""
    with using(target=size["target"]):
        check_with_tiling(size, **tiling_of(size))


def check_with_tiling(size: Size, **tiling: Any) -> Any:
    """A launch with any tiling; returns the main result."""
    logits, targets, dtype = logits_of(size), targets_of(size), TYPES[size["dtype"]]
    if size["options"] != "plain":
        return _check_extended(size, logits, targets, tiling)
    if size["direction"] == "forward":
        return loss_checks.check_forward(logits, targets, dtype, np.dtype(np.float32), cores=size["cores"], **tiling)[0]
    lse = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).astype(np.float32)
    return loss_checks.check_backward(logits, targets, lse, dtype, reduction="sum", cores=size["cores"], **tiling)


def _check_extended(size: Size, logits: Any, targets: Any, tiling: dict[str, int]) -> Any:
    name, dtype = size["options"], TYPES[size["dtype"]]
    options = _extended_loss(name, size["vocabulary"])
    launch = extended_checks.Launch(dtype, size["cores"], tiling["positions_per_batch"], tiling["chunk_size"])
    layout = {key: value for key, value in tiling.items() if key in Layout._fields}
    if name == "probabilities":
        targets = _probabilities(logits.shape)
    if size["direction"] == "forward":
        more = {"with_entropy": name == "entropy", **layout}
        if "exact_maximum" in tiling:
            more["exact_maximum"] = tiling["exact_maximum"]
        return extended_checks.check_forward(logits, targets, options, launch, **more)["loss"]
    expected = extended_forward_reference(logits, targets, dtype, options)
    draw = np.random.default_rng(7)
    upstream = extended_checks.Upstream(
        *(draw.standard_normal(len(logits)).astype(np.float32) for _ in range(2)),
        entropy=draw.standard_normal(len(logits)).astype(np.float32) if name == "entropy" else None,
    )
    further = {"entropy_hbm": expected.entropy.astype(np.float32)} if name == "entropy" else {}
    lse = expected.lse.astype(np.float32)
    return extended_checks.check_backward(logits, targets, lse, upstream, options, launch, **further, **layout)


def _extended_loss(name: str, classes: int) -> ExtendedLoss:
    recipe = _ALL_OPTIONS[name]
    weight = np.random.default_rng(8).uniform(0.5, 2.0, classes).astype(np.float32) if name in _WEIGHTED else None
    named = {
        key: getattr(recipe, key) for key in ("ignore_index", "label_smoothing", "logit_softcap", "lse_square_scale")
    }
    return replace(ExtendedLoss(weight), **named)


def _probabilities(shape: tuple[int, int]) -> Any:
    positive = np.random.default_rng(9).uniform(0.0, 1.0, shape)
    return (positive / positive.sum(axis=1, keepdims=True)).astype(np.float32)


def layout_branches(size: Size) -> Branches:
    """Return the branches of the first core's plan in the layout that the chooser gives."""
    chosen, is_forward = _chosen(size), size["direction"] == "forward"
    launch, options = replace(_launch_of(size), layout=Layout(*chosen[2:])), _options_of(size)
    with using(target=size["target"]), on_core(0, size["cores"]):
        batches = (
            forward_batches(launch, options)
            if is_forward
            else backward_batches(launch, options, UniformUpstream(launch.targets_hbm, 1.0))
        )
    if batches is None:
        return {"direction": size["direction"], "options": size["options"], "layout": "one position a partition"}
    plan = batches[0].plan
    taken: Branches = {"direction": size["direction"], "options": size["options"]}
    taken["layout"] = "split" if plan.parts > 1 else "packed"
    # A core's plan is that of a core of two with as many positions.
    if size["cores"] == 1 or launch.num_positions == 1:
        return {**taken, "cores": "one" if size["cores"] == 1 else "two, one without rows"}
    taken["pieces"] = count_class(len(batches[0].pieces))
    if plan.parts > 1 and size["options"] in ("plain", "smoothing"):
        taken["tail"] = plan.tail > 0
    if size["options"] != "plain":
        return taken
    taken["batches"] = count_class(len(batches))
    if plan.parts > 1:
        return taken
    unlike = batches[0].rows_each != batches[-1].rows_each
    return {**taken, "positions_of_piece": count_class(batches[0].pieces[0].rows), "unlike_batches": unlike}


_LAYOUT_POSITIONS = (1, 2, 31, 128, 130, 257, 300, 600, 1025, 4096, 8191, 66000)
_LAYOUT_VOCABULARIES = (1, 33, 256, 513, 1000, 1500, 2048, 4096, 32000, 50257, 128256)


def layout_sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of few positions and of few classes."""
    names = ("plain", "ignored", "entropy", "smoothing", "cap", "recipe")
    dtypes = tuple(TYPES) if wide else ("bfloat16",)
    positions = _LAYOUT_POSITIONS if wide else (1, 31, 300, 4096)
    for size in _sizes(positions, _LAYOUT_VOCABULARIES, dtypes, names):
        if size["target"] == "trn2":
            yield size


def check_layout(size: Size) -> None:
    """A launch with the chooser's tiling and layout, within the derived bounds."""
    with using(target=size["target"]):
        check_with_tiling(size, **_chosen(size)._asdict())


LAYOUTS = PlanFamily(
    name="cross_entropy_layouts",
    kernels=lambda size: (_KERNELS[size["options"] == "plain", size["direction"]],),
    sizes=layout_sizes,
    branches=layout_branches,
    cost=cost,
    check=check_layout,
)

FAMILY = PlanFamily(
    name="cross_entropy",
    kernels=lambda size: (_KERNELS[size["options"] == "plain", size["direction"]],),
    sizes=sizes,
    branches=branches,
    cost=cost,
    check=check,
    shrunk_sizes=shrunk_sizes,
)
