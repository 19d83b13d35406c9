# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the elementwise losses, including the Kullback-Leibler divergence.

All kernels are on the grid. They have one skeleton, whose plan depends on how many tensors and scratch tiles a loss
has; so one of them launches a row for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from nkilib.core.cores import levels
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.skeletons.elementwise import host as reference
from nkilib.experimental.loss.skeletons.elementwise import run
from nkilib.experimental.loss.skeletons.elementwise.stream import Launch, flat_tiles, matrix_tiles
from nkilib.experimental.loss.skeletons.elementwise.tiling import piece_columns
from nkilib.nki import nl
from nkilib.simulator import spec
from nkilib.verify.kernels.elementwise import ENTRIES
from tests.experimental.plans.coverage import (
    TYPES,
    Branches,
    Limits,
    PlanFamily,
    Size,
    arguments_of,
    assert_within,
    count_class,
    cut_class,
    on_core,
)

_OF_NAME = {entry.name: entry for entry in ENTRIES}
# Rows and columns; a row alone is a stream.
_SHAPES = (
    *((1, columns) for columns in (1, 100, 128, 1000, 65536, 10**5, 2**20, 10**6, 3 * 10**6, 2**23, 10**7, 10**8)),
    *((4096, 1000), (300, 7), (20000, 64), (1000, 20000), (131072, 1024), (4096, 32128), (129, 3), (128, 2**17)),
)
_SAMPLED_SHAPES = (
    (1, 1),
    (1, 100),
    (1, 1000),
    (1, 2**20),
    (1, 10**7),
    (1, 10**8),
    (300, 7),
    (1000, 20000),
    (4096, 32128),
)
_SHRUNK_SHAPES = (
    *(
        (1, columns)
        for columns in (100, 1000, 65536, 10**5, 524288, 524299, 10**6, 2**20, 2 * 10**6, 5 * 2**20, 5_500_000)
    ),
    *((300, 7), (1000, 900), (1000, 1200), (256, 2000), (300, 3000), (256, 8192), (5000, 64), (1280, 600), (257, 8192)),
    *((12800, 100), (32000, 100), (10240, 128), (34816, 128), (1536, 3000), (2176, 2048), (640, 4096), (384, 3000)),
    *((1500, 3000), (2177, 2048), (1536, 1100), (8000, 700)),
)
# Elements that are drawn for a tensor; further ones repeat them. No tile has as many.
_MADE = 65537
_STEPS = {
    "summed": f"{run.__name__}.forward_of_core",
    "stored": f"{run.__name__}.forward_of_core",
    "backward": f"{run.__name__}.backward_of_core",
    "both": f"{run.__name__}.forward_backward_of_core",
}


def _kernel_of(size: Size) -> Any:
    entry = _OF_NAME[size["kind"]]
    return {"backward": entry.backward, "both": entry.both}.get(size["launch"], entry.forward)


def _reduction_of(size: Size) -> str:
    """Losses are stored, or their mean is taken."""
    return "none" if size["launch"] == "stored" else "mean"


def _weight_part(size: Size, name: str) -> tuple[slice, slice]:
    """Return the part of an elementwise weight that a launch is given: one value per row or column if shared."""
    everything = slice(None), slice(None)
    shared = {"rows": (slice(None), slice(0, 1)), "columns": (slice(0, 1), slice(None))}
    return shared.get(size["weights"], everything) if name == "weight" else everything


def _shapes_of(size: Size) -> dict[str, Any]:
    """Tensors without data, as arguments of the kernel."""
    shape, entry = (size["rows"], size["columns"]), _OF_NAME[size["kind"]]
    inputs: dict[str, Any] = {f"{name}_hbm": None for name in entry.absent}
    for name in entry.tensors:
        part = _weight_part(size, name)
        inputs[f"{name}_hbm"] = spec(tuple(len(range(n)[p]) for n, p in zip(shape, part, strict=True)), size["dtype"])
    return inputs


def launch_of(size: Size) -> Launch:
    """The plan that the kernel makes."""
    arguments = {**_shapes_of(size), **_OF_NAME[size["kind"]].options, "reduction": _reduction_of(size)}
    if size["launch"] in ("backward", "both"):
        arguments |= {"grad_loss_hbm": spec((1,), nl.float32), **_flags_of(size)}
    return arguments_of(_STEPS[size["launch"]], _kernel_of(size), **arguments)[0]


def _flags_of(size: Size) -> dict[str, bool]:
    entry = _OF_NAME[size["kind"]]
    if len(entry.gradients) == 1:  # the only gradient has no flag
        return {}
    return {f"grad_{name}_wanted": name in _wanted(size) for name in entry.gradients}


def _wanted(size: Size) -> list[str]:
    """Gradients: not that of a weight, which may be shared."""
    return [name for name in _OF_NAME[size["kind"]].gradients if name != "weight"]


def branches(size: Size) -> Branches:
    """Return the branches of both cores' plan: tiles do not depend on the cores."""
    with on_core(0, size["cores"]):
        launch = launch_of(size)
    columns, piece = launch.tiling.columns, piece_columns(launch.scratch_tiles)
    taken: Branches = {"launch": size["launch"], "buffers": launch.tiling.buffers}
    taken["cores"] = "one" if size["cores"] == 1 else "two"
    if launch.is_by_rows:
        rows, row_columns = launch.shape
        tiles: Any = matrix_tiles(rows, row_columns, columns)
        whole = [tile for tile in tiles if tile.rows == PARTITIONS and tile.columns == tiles[0].columns]
        taken["layout"] = "some columns of a row" if row_columns > columns else _layout(tiles[0].each)
        taken["ends"] = any(tile.rows < PARTITIONS for tile in tiles)
    else:
        tiles = flat_tiles(launch.elements, columns)
        whole = [tile for tile in tiles if tile.rows == PARTITIONS and tile.columns == columns]
        taken["layout"] = "flat"
        taken["ends"] = "".join("s" if tile.rows < PARTITIONS else "l" for tile in tiles[len(whole) :])
    taken["whole_tiles"] = count_class(len(whole))
    if size["launch"] == "summed" and not launch.is_by_rows:
        taken["levels"] = levels(len(tiles))
    if len(tiles) == 1 and size["cores"] > 1:
        taken["cores"] = "two, one without tiles"
    if size["cores"] == 1 or len(tiles) == 1:  # tiles do not depend on cores
        return {name: value for name, value in taken.items() if name not in ("layout", "ends")}
    longest = max(tile.columns for tile in tiles)
    is_ragged = any(tile.columns > piece and tile.columns % piece for tile in tiles)
    taken["pieces"] = cut_class(div_ceil(longest, piece), is_ragged)
    return taken


def _layout(rows: int) -> str:
    return "rows in a partition" if rows > 1 else "a row in a partition"


def _sizes(shapes: tuple[tuple[int, int], ...], dtypes: tuple[str, ...]) -> Iterator[Size]:
    for name, shape, dtype in product(_OF_NAME, shapes, dtypes):
        launches = ("summed", "stored", "backward", "both") if name == "mse_loss" else ("summed", "backward")
        weights = (
            ("elements", "rows", "columns") if "weight" in _OF_NAME[name].tensors and shape[0] > 1 else ("elements",)
        )
        for launch, weight in product(launches, weights):
            for cores in (1, 2) if weight == "elements" and launch == "summed" else (2,):
                yield {
                    "kind": name,
                    "launch": launch,
                    "weights": weight,
                    "dtype": dtype,
                    "rows": shape[0],
                    "columns": shape[1],
                    "cores": cores,
                }


def sizes(wide: bool) -> Iterator[Size]:
    """Return sizes from one element to a hundred million: only beyond that are there two buffers."""
    return _sizes(_SHAPES, ("bfloat16", "float32")) if wide else _sizes(_SAMPLED_SHAPES, ("bfloat16",))


def shrunk_sizes() -> Iterator[tuple[Size, Limits]]:
    """Tiles of few columns."""
    for kilobytes, piece in product((48, 56, 64, 80, 96, 112, 144), ({}, {"piece_columns": 512})):
        for size in _sizes(_SHRUNK_SHAPES, ("bfloat16", "float32")):
            yield size, {"sbuf_bytes": kilobytes * 1024, **piece}


def cost(size: Size) -> float:
    """Elements, of all tensors."""
    return float(size["rows"] * size["columns"] + 10000) * (1.0 + len(_OF_NAME[size["kind"]].tensors))


def check(size: Size) -> None:
    """A launch with the chooser's tiling, within the derived bounds."""
    with on_core(0, size["cores"]):
        tiling = launch_of(size).tiling
    check_with_tiling(size, **tiling._asdict())


def check_with_tiling(size: Size, **tiling: Any) -> tuple[Any, ...]:
    """A launch with any tiling; returns its results. Types alternate, where the plan is of one."""
    entry, reduction, shape = _OF_NAME[size["kind"]], _reduction_of(size), (size["rows"], size["columns"])
    made = entry.made((1, min(_MADE, size["rows"] * size["columns"])), (TYPES[size["dtype"]],))
    parts = {name: np.resize(tensor, shape)[_weight_part(size, name)] for name, tensor in made.items()}
    inputs = {name: np.ascontiguousarray(part) for name, part in parts.items()}
    tensors = {name: np.broadcast_to(tensor, shape) for name, tensor in inputs.items()}
    arguments = {**entry.arguments(inputs), **tiling, "reduction": reduction}
    exact: list[Any] = []
    if size["launch"] == "stored":
        exact.append(reference.losses(entry.reference, tensors, TYPES[size["dtype"]]))
    elif size["launch"] in ("summed", "both"):
        exact.append(reference.reduced(entry.reference, tensors, reduction, tiling["columns"]))
    if size["launch"] in ("backward", "both"):
        upstream = np.full((1,), -1.75, np.float32)
        arguments |= {"grad_loss_hbm": upstream, **_flags_of(size)}
        gradients = reference.gradients(entry.reference, tensors, upstream, reduction)
        exact += [gradients[name] for name in _wanted(size)]
    results = _kernel_of(size)[size["cores"]](**arguments)
    results = results if isinstance(results, tuple) else (results,)
    for number, (came, known) in enumerate(zip(results, exact, strict=True)):
        assert_within(f"result {number} of {size}", came, known.value, known.error)
    return results


FAMILY = PlanFamily(
    name="elementwise",
    kernels=lambda size: (_kernel_of(size),),
    sizes=sizes,
    branches=branches,
    cost=cost,
    check=check,
    shrunk_sizes=shrunk_sizes,
)
