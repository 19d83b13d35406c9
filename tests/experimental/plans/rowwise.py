# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the row-wise losses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.rowwise import cosine_embedding as cosine_kernels
from nkilib.experimental.loss.rowwise import multilabel_soft_margin as multilabel_soft_margin_kernels
from nkilib.experimental.loss.rowwise import triplet_margin as triplet_kernels
from nkilib.experimental.loss.skeletons.rowwise import host as reference
from nkilib.experimental.loss.skeletons.rowwise.stream import RowLaunch
from nkilib.nki import nl
from nkilib.simulator import spec
from nkilib.verify.kernels.rowwise import ENTRIES, RowwiseEntry
from tests.experimental.plans.coverage import (
    TYPES,
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

_OF_NAME: dict[str, RowwiseEntry] = {entry.name: entry for entry in ENTRIES}
_MODULES = {
    "triplet_margin_loss": triplet_kernels,
    "cosine_embedding_loss": cosine_kernels,
    "multilabel_soft_margin_loss, weighted": multilabel_soft_margin_kernels,
}
_ROWS = (1, 2, 3, 100, 255, 256, 300, 1000, 1024, 2048, 4096, 5000, 8192, 20000, 65536, 131072)
_COLUMNS = (1, 2, 9, 64, 100, 128, 300, 512, 513, 768, 1000, 1024, 2048, 4096, 5000, 8192, 10000, 20000, 32768)
_SAMPLED_ROWS = (1, 2, 300, 1024, 5000, 131072)
_SAMPLED_COLUMNS = (1, 64, 300, 512, 1000, 4096, 20000)
_SHRUNK_ROWS = (1, 2, 3, 100, 129, 255, 256, 300, 512, 1000, 1024, 1100, 2048, 4096, 4200, 5000, 9000)
_SHRUNK_COLUMNS = (1, 2, 9, 64, 100, 300, 512, 513, 768, 1024, 1100, 2048, 3000, 4096)


def _arguments_without_data(size: Size) -> dict[str, Any]:
    """Return the arguments of the kernel, without data."""
    entry, rows = _OF_NAME[size["kind"]], size["rows"]
    shape, is_forward = (rows, size["columns"]), size["launch"] != "backward"
    made = entry.made((2, 1))
    inputs: dict[str, Any] = {
        name: value for name, value in entry.options.items() if is_forward or name not in entry.of_forward
    }
    for name, tensor in made.items():
        if is_forward or name not in entry.of_forward:
            of_tensor = (rows,) if tensor.ndim == 1 else (rows if tensor.shape[0] > 1 else 1, shape[1])
            inputs[f"{name}_hbm"] = spec(of_tensor, size["dtype"] if tensor.ndim == 2 else nl.float32)
    if is_forward:
        return {**inputs, "reduction": "mean"}
    if entry.has_coefficients:
        numbers = {"triplet_margin_loss": 2, "cosine_embedding_loss": 3}[size["kind"]]
        inputs["coefficients_hbm"] = spec((numbers, rows), nl.float32)
    flags = {f"grad_{name}_wanted": True for name in entry.gradients}
    return {**inputs, **flags, "grad_loss_hbm": spec((1,), nl.float32), "reduction": "mean"}


def _kernel_of(size: Size) -> Any:
    entry = _OF_NAME[size["kind"]]
    return entry.backward if size["launch"] == "backward" else entry.forward


def launch_of(size: Size) -> RowLaunch:
    """The plan that the kernel makes."""
    entry, kernel = _OF_NAME[size["kind"]], _kernel_of(size)
    arguments = _arguments_without_data(size)
    tiling = result_of(f"{_MODULES[size['kind']].__name__}.checked_tiling", kernel, **arguments)
    matrices = (arguments[f"{name}_hbm"] for name in entry.tensors if f"{name}_hbm" in arguments)
    return RowLaunch(tuple(matrix for matrix in matrices if len(matrix.shape) == 2), tiling)


def branches(size: Size) -> Branches:
    """Return the branches of the first core's plan, and whether the second one has tiles."""
    with on_core(0, size["cores"]):
        launch = launch_of(size)
        tiles, groups = launch.tiles(), launch.groups()
    tiling = launch.tiling
    taken: Branches = {"launch": size["launch"], "cores": "one" if size["cores"] == 1 else "two"}
    if size["cores"] == 1:  # tiles do not depend on it
        return {**taken, "groups": count_class(len(groups))}
    if len(tiles) == 1:
        return {**taken, "cores": "two, one without tiles"}
    chunks = div_ceil(launch.columns, tiling.columns)
    taken["has_shared_gradient"] = launch.matrices_hbm[-1].shape[0] == 1 < launch.rows and size["launch"] == "backward"
    taken["chunks"] = cut_class(chunks, launch.columns % tiling.columns != 0)
    taken["rows_of_partition"] = " ".join(sorted({count_class(tile.each) for tile in tiles}))
    taken["groups"] = count_class(len(groups))
    if len(groups) == 1:
        taken["pieces"] = count_class(div_ceil(tiling.width, tiling.piece_width))
        taken["ends"] = any(tile.partitions < PARTITIONS for tile in tiles)
    return taken


def _sizes(rows: tuple[int, ...], columns: tuple[int, ...], dtypes: tuple[str, ...]) -> Iterator[Size]:
    launches = ("forward", "backward")
    for entry, launch, dtype, of_rows, of_columns in product(_MODULES, launches, dtypes, rows, columns):
        for cores in (1, 2):
            if of_rows * of_columns <= 2**30:
                yield {
                    "kind": entry,
                    "launch": launch,
                    "dtype": dtype,
                    "rows": of_rows,
                    "columns": of_columns,
                    "cores": cores,
                }


def sizes(wide: bool) -> Iterator[Size]:
    """Return sizes of embeddings and of labels."""
    if wide:
        return _sizes(_ROWS, _COLUMNS, ("bfloat16", "float32"))
    return _sizes(_SAMPLED_ROWS, _SAMPLED_COLUMNS, ("bfloat16",))


def shrunk_sizes() -> Iterator[tuple[Size, Limits]]:
    """Chunks of few columns."""
    for kilobytes, piece in product((64, 80, 96, 128), ({"piece_columns": 512}, {})):
        for size in _sizes(_SHRUNK_ROWS, _SHRUNK_COLUMNS, ("bfloat16", "float32")):
            if cost(size) <= 2e7:
                yield size, {"sbuf_bytes": kilobytes * 1024, **piece}


def cost(size: Size) -> float:
    """Elements, of all tensors."""
    return float(size["rows"] * size["columns"] + 10000) * (1.0 + len(_OF_NAME[size["kind"]].tensors))


def check(size: Size) -> None:
    """A launch with the chooser's tiling, within the derived bounds."""
    check_with_tiling(size)


def check_with_tiling(size: Size, **tiling: int) -> tuple[Any, ...]:
    """A launch with any tiling; returns its results. A forward stores its losses, and sums them in another launch."""
    entry, shape = _OF_NAME[size["kind"]], (size["rows"], size["columns"])
    tensors = entry.made(shape, (TYPES[size["dtype"]],))
    if size["launch"] == "backward":
        upstream = np.full((1,), -1.75, np.float32)
        gradients = reference.gradients(entry.reference, tensors, upstream, "mean")
        arguments = entry.backward_arguments(tensors, upstream)
        results = entry.backward[size["cores"]](**arguments, reduction="mean", **tiling)
        exact = [gradients[name] for name in entry.gradients]
        results = results if isinstance(results, tuple) else (results,)
    else:
        launches = (
            entry.forward[size["cores"]](**entry.arguments(tensors), reduction=reduction, **tiling)
            for reduction in ("none", "mean")
        )
        results = tuple(returned[0] if isinstance(returned, tuple) else returned for returned in launches)
        exact = [
            reference.losses(entry.reference, tensors, results[0].dtype),
            reference.reduced(entry.reference, tensors, "mean"),
        ]
    for number, (came, known) in enumerate(zip(results, exact, strict=True)):
        assert_within(f"result {number} of {size}", came, known.value, known.error)
    return results


FAMILY = PlanFamily(
    name="rowwise",
    kernels=lambda size: (_kernel_of(size),),
    sizes=sizes,
    branches=branches,
    cost=cost,
    check=check,
    shrunk_sizes=shrunk_sizes,
)
