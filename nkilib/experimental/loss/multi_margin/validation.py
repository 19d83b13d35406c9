"""What the kernels accept. Everything else is refused here, before the first instruction."""

from __future__ import annotations

from math import isfinite

from nkilib.core.losses.checks import require_floats, require_reduction
from nkilib.core.rows.checks import require, require_indirect_dma, require_vector
from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.multi_margin.host.tiling import MOST_COLUMNS
from nkilib.experimental.loss.multi_margin.options import Launch
from nkilib.experimental.loss.skeletons.indexed.positions import BATCHES_MAX
from nkilib.nki import nl

# Chunks of a row, whose sums a partition keeps.
_MOST_CHUNKS = 4096


def validate(launch: Launch) -> None:
    """Tensors and options of either kernel."""
    function, input_hbm = launch.function, launch.input_hbm
    require_indirect_dma(function)
    shape = tuple(input_hbm.shape)
    require(
        len(shape) == 2 and min(shape) > 0,
        f"{function}: input_hbm must have shape (N, C) with N, C > 0, got {shape}; reshape [C] to [1, C]",
    )
    require_floats(function, "input_hbm.dtype", input_hbm.dtype)
    require(
        tuple(launch.targets_hbm.shape) == shape[:1] and launch.targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32 of shape ({shape[0]},), got {launch.targets_hbm.dtype} of shape "
        f"{tuple(launch.targets_hbm.shape)}; cast it to int32",
    )
    if launch.class_weight_hbm is not None:
        require_vector(function, "class_weight_hbm", launch.class_weight_hbm, shape[1], "the classes")
    p, margin = launch.options.p, launch.options.margin
    require(p in (1, 2) and not isinstance(p, bool), f"{function}: p must be 1 or 2, got {p}")
    require(isfinite(margin), f"{function}: margin must be finite, got {margin}; a number near 1 is usual")
    require_reduction(function, launch.reduction)
    _validate_sizes(launch)


def _validate_sizes(launch: Launch) -> None:
    function, shape, chunk_size = launch.function, launch.shape, launch.tiling.chunk_size
    require(
        isinstance(chunk_size, int) and 0 < chunk_size <= MOST_COLUMNS,
        f"{function}: chunk_size must be an integer from 1 to {MOST_COLUMNS}, got {chunk_size}; leave it out",
    )
    most = min(INDEX_LIMIT, _MOST_CHUNKS * chunk_size)
    require(
        shape.classes <= most,
        f"{function}: a row must have at most {most} classes in chunks of {chunk_size}, got {shape.classes}; "
        f"pass chunk_size={MOST_COLUMNS}, or split the classes",
    )
    blocks = div_ceil(shape.rows, shape.rows_of_block)
    require(
        blocks <= BATCHES_MAX,
        f"{function}: a launch takes at most {BATCHES_MAX} groups of up to 128 rows, got {blocks} of {shape.rows} "
        f"rows; split the rows",
    )
