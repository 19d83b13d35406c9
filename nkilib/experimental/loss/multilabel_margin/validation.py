"""What the kernels accept. Everything else is refused here, before the first instruction."""

from __future__ import annotations

from nkilib.core.losses.checks import require_floats, require_reduction
from nkilib.core.rows.checks import require
from nkilib.experimental.loss.multilabel_margin.launch import BLOCKS_MAX, CLASSES_MAX, PARTITIONS, Launch
from nkilib.nki import nl


def validate(launch: Launch) -> None:
    """Tensors and options of either kernel."""
    function, shape = launch.function, tuple(launch.input_hbm.shape)
    require(
        len(shape) == 2 and min(shape) > 0,
        f"{function}: input_hbm must have shape (N, C) with N, C > 0, got {shape}; reshape [C] to [1, C]",
    )
    require_floats(function, "input_hbm.dtype", launch.input_hbm.dtype)
    targets_hbm = launch.targets_hbm
    require(
        tuple(targets_hbm.shape) == shape and targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32 of shape {shape}, got {targets_hbm.dtype} of shape "
        f"{tuple(targets_hbm.shape)}; cast it to int32, and fill rows with -1",
    )
    require(
        launch.classes <= CLASSES_MAX,
        f"{function}: a row must have at most {CLASSES_MAX} classes, which are on chip together, got {launch.classes}; "
        f"drop classes that are nobody's target",
    )
    require(
        launch.number_of_blocks <= BLOCKS_MAX,
        f"{function}: a launch takes at most {BLOCKS_MAX * PARTITIONS} rows, got {launch.rows}; split the rows",
    )
    require_reduction(function, launch.reduction)
