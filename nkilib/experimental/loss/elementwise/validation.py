"""What kernels of losses of elements accept. Everything else is refused here, before the first instruction."""

from __future__ import annotations

from math import prod

from nkilib.core.losses.checks import require_floats
from nkilib.core.partial_sums import PARTITIONS
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import FREE_AXIS_MAX, require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.elementwise.host.tiling import (
    ElementwiseTiling,
    choose_elementwise_tiling,
    num_tiles,
    partition_bytes,
)
from nkilib.experimental.loss.elementwise.sizes import piece_columns, run_columns
from nkilib.nki import nl


def require_tensors(function: str, tensors: dict[str, nl.NkiTensor], shared: tuple[str, ...] = ()) -> None:
    """Floating tensors of one shape, with at least one element; the first one says which.

    Those that may be ``shared`` among elements may be one number for each row, or for each column, of a matrix.
    """
    first, *_ = tensors
    shape = tuple(tensors[first].shape)
    require(prod(shape) > 0, f"{function}: {first} must have at least one element, got shape {shape}; launch nothing")
    for name, tensor_hbm in tensors.items():
        accepted = [shape]
        if name in shared and len(shape) == 2:
            accepted += [(shape[0], 1), (1, shape[1])]
        require(
            tuple(tensor_hbm.shape) in accepted,
            f"{function}: {name} must have the shape of {first}, {' or '.join(str(each) for each in accepted)}, "
            f"got {tuple(tensor_hbm.shape)}; {'reshape or ' if len(accepted) > 1 else ''}expand it",
        )
        require_floats(function, f"{name}.dtype", tensor_hbm.dtype)


def checked_tiling(
    function: str,
    elements: int,
    dtypes: list[nl.DType],
    scratch_tiles: int,
    columns: int | None,
    buffers: int | None,
    row_columns: int | None = None,
) -> ElementwiseTiling:
    """The tiling that was asked for, with what is chosen where nothing was.

    Args:
        function: that is named in errors.
        elements: of a tensor.
        dtypes: of all tensors that are read or written, element by element.
        scratch_tiles: of a piece.
        columns, buffers: of the kernel; None: chosen.
        row_columns: elements of a row, where a weight is one of rows or of columns.
    """
    bytes_of_element = sum(dtype_bytes(dtype) for dtype in dtypes)
    chosen = choose_elementwise_tiling(elements, bytes_of_element, scratch_tiles, row_columns)
    columns, buffers = chosen.columns if columns is None else columns, chosen.buffers if buffers is None else buffers
    for name, value, least in (("columns", columns, PARTITIONS), ("buffers", buffers, 2)):
        require(
            isinstance(value, int) and value >= least,
            f"{function}: {name} must be an integer of at least {least}, got {value}",
        )
    require(
        columns <= FREE_AXIS_MAX,
        f"{function}: columns must be at most {FREE_AXIS_MAX}, the longest free axis of an instruction, got {columns}",
    )
    tiling = ElementwiseTiling(columns, buffers)
    run = run_columns((dtype_bytes(dtype) for dtype in dtypes), piece_columns(scratch_tiles))
    tiles = num_tiles(elements, tiling.columns, row_columns)
    taken = partition_bytes(tiling, tiles, bytes_of_element, scratch_tiles, run)
    available = usable_sbuf_bytes()
    remedy = f"pass columns={chosen.columns} and buffers={chosen.buffers}"
    require(
        taken <= available,
        f"{function}: {buffers} buffers of {columns} columns take {taken} bytes of an SBUF partition with what stands "
        f"beside them, which has {available}; {'split the tensors' if tiling == chosen else remedy}",
    )
    return tiling
