# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Draws of computing instructions: elementwise, reducing and accumulating ones, products, selections."""

from __future__ import annotations

from typing import Final

from benchmarks.fuzz.kernels.drawing import FLOATS, Maker
from benchmarks.fuzz.kernels.moving import load_new
from benchmarks.fuzz.kernels.places import Area, Place

_BINARY: Final = ("nl.add", "nl.subtract", "nl.multiply", "nl.maximum", "nl.minimum")
_FUNCTIONS: Final = ("nl.exp", "nl.copy", "nl.relu", "nl.square", "nl.sigmoid", "nl.tanh", "nl.abs", "nl.sqrt")
_COMMANDS: Final = ("reset", "reduce", "reset_reduce", "idle")
_REDUCING: Final = ("nl.add", "nl.maximum", "nl.minimum")


def destination(maker: Maker) -> tuple[Place, Area] | None:
    """Draw the destination of a result: a part of an existing tile, or all of a new one."""
    if not maker.on_chip():
        load_new(maker)
    if maker.on_chip() and maker.chance(0.6):
        tile = maker.any_tile()
        return tile, maker.part_of(tile)
    shape = maker.any_tile() if maker.on_chip() else Place("", maker.rows, maker.one_of(maker.sizes.columns), "", "")
    made = maker.tile(shape.rows, shape.columns, maker.one_of(FLOATS), "psum" if maker.chance(0.1) else "sbuf")
    if made is None:
        return None
    return made, Area(made.rows, made.columns)


def keep(maker: Maker, place: Place, line: str) -> bool:
    """Add a line that writes a tile; a new tile counts once it has content."""
    is_taken = maker.add(line)
    if is_taken and place not in maker.places:
        maker.places.append(place)
    return is_taken


def elementwise(maker: Maker) -> None:
    """One or two tiles, and columns of scalars."""
    result = destination(maker)
    if result is None or not maker.on_chip():
        return
    place, area = result
    dst, first, second = place.text(area), maker.source(place, area), maker.source(place, area)
    op0, op1 = maker.one_of(_BINARY), maker.one_of(_BINARY)
    kind = maker.integer(0, 4)
    line = (
        f"nisa.tensor_tensor({dst}, {first}, {second}, {op0})",
        f"nisa.tensor_scalar({dst}, {first}, {op0}, {maker.column(area)}, op1={op1}, operand1={maker.column(area)})",
        f"nisa.tensor_scalar({dst}, {first}, {op0}, {maker.column(area)}, reverse0={maker.chance(0.5)})",
        f"nisa.activation({dst}, {maker.one_of(_FUNCTIONS)}, {first}, scale={maker.column(area)})",
        f"nisa.scalar_tensor_tensor({dst}, {first}, {op0}, {maker.column(area)}, {op1}, {second})",
    )[kind]
    keep(maker, place, line)


def copies(maker: Maker) -> None:
    """Copies, fills, numbers, reciprocals, and a tile that is worked on in another order of its elements."""
    result = destination(maker)
    if result is None or not maker.on_chip():
        return
    place, area = result
    dst, source = place.text(area), maker.source(place, area)
    kind = maker.integer(0, 5)
    if kind == 5:
        factors = [size for size in range(2, area.columns) if area.columns % size == 0]
        if not factors:
            return
        one = maker.one_of(factors)
        other = area.columns // one
        keep(
            maker,
            place,
            f"nisa.tensor_copy({dst}.reshape_dim(1, ({one}, {other})), "
            f"{source}.reshape_dim(1, ({other}, {one})).permute((0, 2, 1)))",
        )
        return
    line = (
        f"nisa.tensor_copy({dst}, {source})",
        f"nisa.tensor_copy({dst}, {source}, engine=nisa.scalar_engine)",
        f"nisa.memset({dst}, {maker.number()})",
        f"nisa.iota({dst}, [[1, {area.columns}]], offset={maker.integer(0, 5)}, channel_multiplier=3)",
        f"nisa.reciprocal({dst}, {source})",
    )[kind]
    keep(maker, place, line)


def reducing(maker: Maker) -> None:
    """Rows are reduced, by themselves or beside a result."""
    if not maker.on_chip():
        return
    tile = maker.any_tile()
    area = maker.part_of(tile)
    column = maker.tile(tile.rows, maker.integer(1, 2), "float32")
    if column is None:
        return
    if not maker.add(f"nisa.memset({column.name}, {maker.number()})"):
        return
    maker.places.append(column)
    target = column.text(Area(area.rows, 1, area.top, maker.integer(0, column.columns - 1)))
    if maker.chance(0.2):
        target = maker.text_of_column(area) or target
    source, op = tile.text(area), maker.one_of(_REDUCING)
    if maker.chance(0.4):
        maker.add(f"nisa.tensor_reduce({target}, {op}, {source}, axis=1, negate={maker.chance(0.3)})")
        return
    result = destination(maker)
    if result is None:
        return
    place = result[0]
    if place.rows < area.top + area.rows or place.columns < area.columns:
        place = tile
    into = area if maker.chance(0.5) and place is tile else maker.somewhere(place, area.rows, area.columns)
    dst = place.text(into._replace(top=area.top))
    command = maker.one_of(_COMMANDS)
    line = maker.one_of(
        (
            f"nisa.activation({dst}, {maker.one_of(_FUNCTIONS)}, {source}, bias={maker.column(area)}, "
            f"scale={maker.column(area)}, reduce_op=nl.add, reduce_res={target}, "
            f"reduce_cmd=nisa.reduce_cmd.{command})",
            f"nisa.activation_reduce({dst}, nl.exp, {source}, nl.add, {target}, scale={maker.column(area)})",
            f"nisa.tensor_scalar_reduce({dst}, {source}, {maker.one_of(_BINARY)}, {maker.column(area)}, {op}, "
            f"{target})",
            f"nisa.scalar_tensor_tensor({dst}, {source}, {maker.one_of(_BINARY)}, {maker.column(area)}, "
            f"{maker.one_of(_BINARY)}, {maker.source(tile, area)}, reduce_op={op}, reduce_res={target})",
        )
    )
    if "bias=" in line and maker.chance(0.5):
        line = line.replace(f"bias={line.split('bias=')[1].split(', scale')[0]}, ", "")
    if (into.rows, into.columns) == (place.rows, place.columns):
        keep(maker, place, line)
    else:
        maker.add(line)  # of a new tile the rest has no content, so that no later line may read it


def select(maker: Maker) -> None:
    """Copies under a mask, and selections."""
    if not maker.on_chip():
        return
    place = maker.any_tile()
    area = maker.part_of(place)
    mask = maker.tile(place.rows, area.columns, "uint8")
    if mask is None or not maker.add(f"nisa.dma_copy({mask.name}, masks[0:{place.rows}, 0:{area.columns}])"):
        return
    predicate = mask.text(Area(area.rows, area.columns, area.top))
    dst, source = place.text(area), maker.source(place, area)
    line = maker.one_of(
        (
            f"nisa.tensor_copy_predicated({dst}, {source}, {predicate}, reverse_pred={maker.chance(0.5)})",
            f"nisa.tensor_copy_predicated({dst}, {maker.number()}, {predicate})",
            f"nisa.select_reduce({dst}, {predicate}, {source}, {maker.column(area)})",
            f"nisa.affine_select({dst}, [[1, {area.columns}]], -1, {source}, {maker.number()}, nl.greater_equal)",
        )
    )
    keep(maker, place, line)


def searching(maker: Maker) -> None:
    """Draw maxima, places, running sums, means: instructions whose functions a replay runs unchanged."""
    if not maker.on_chip():
        return
    tile = maker.any_tile()
    area = maker.part_of(tile, whole=0.7)
    kind = maker.integer(0, 3)
    if kind == 0:
        best, index = maker.tile(tile.rows, 8, "float32"), maker.tile(tile.rows, 8, "uint32")
        if best is None or index is None:
            return
        part = Area(area.rows, 8, area.top)
        if maker.add(f"nisa.max8({best.text(part)}, {tile.text(area)})") and area.rows == best.rows:
            maker.places.append(best)
            maker.add(f"nisa.nc_find_index8({index.text(part)}, {tile.text(area)}, {best.text(part)})")
            maker.add(f"nisa.nc_match_replace8({tile.text(area)}, {tile.text(area)}, {best.text(part)}, -9.0)")
    elif kind == 1:
        other = maker.source(tile, area)
        line = f"{tile.text(area)}, {tile.text(area)}, {other}, {maker.number()}, nl.multiply, nl.add"
        maker.add(f"nisa.tensor_tensor_scan({line})")
    elif kind == 2:
        stats = maker.tile(tile.rows, 6, "float32")
        if stats is not None and maker.add(
            f"nisa.bn_stats({stats.text(Area(area.rows, 6, area.top))}, {tile.text(area)})"
        ):
            maker.places += [stats] if area.rows == stats.rows else []
    else:
        total = maker.tile(1, area.columns, "float32")
        if total is not None and maker.add(f"nisa.tensor_partition_reduce({total.name}, nl.add, {tile.text(area)})"):
            maker.places.append(total)


def products(maker: Maker) -> None:
    """Draw one or two sums of products in PSUM, which alternate, and whose operands may change in between."""
    rows = maker.one_of((maker.rows, maker.integer(1, maker.rows)))
    operands = [
        tensor
        for tensor in maker.on_chip()
        if tensor.buffer == "sbuf" and tensor.rows >= rows and tensor.dtype in FLOATS
    ]
    if len(operands) < 2:
        return
    sums = [
        maker.tile(maker.integer(1, 128), maker.integer(1, 512), "float32", "psum") for _ in range(maker.integer(1, 2))
    ]
    shapes = {item: (min(item.rows, 40), min(item.columns, 60)) for item in sums if item is not None}
    begun: set[Place] = set()
    for _ in range(maker.integer(1, 6)):
        if not shapes:
            return
        target = maker.one_of(list(shapes))
        left, right = maker.one_of(operands), maker.one_of(operands)
        height, width = shapes[target]
        height, width = min(height, left.columns), min(width, right.columns)
        if target in begun and (height, width) != shapes[target]:
            continue
        shapes[target] = height, width
        one = left.text(maker.somewhere(left, rows, height)._replace(step=1))
        two = right.text(maker.somewhere(right, rows, width)._replace(step=1))
        into = target.text(Area(height, width))
        mode = "True" if target in begun and maker.chance(0.8) else maker.one_of(("None", "False"))
        if maker.add(f"nisa.nc_matmul({into}, {one}, {two}, accumulate={mode})"):
            begun.add(target)
        if maker.chance(0.3):
            elementwise(maker)
        elif maker.chance(0.15):
            load_new(maker)
    for target in begun:
        read = maker.tile(*shapes[target], maker.one_of(FLOATS))
        if read is not None and maker.chance(0.8):
            keep(maker, read, f"nisa.tensor_copy({read.name}, {target.text(Area(*shapes[target]))})")
