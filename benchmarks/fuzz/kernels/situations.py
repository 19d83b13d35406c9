# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Situations in which a replay that omits too much, or runs it too early or too late, gives different bits.

Each is a few lines, sometimes with others in between, and its results are returned from the kernel.
:func:`random_kernel` draws the kernel of a seed from these situations and from other instructions.
"""

from __future__ import annotations

from typing import Final

from benchmarks.fuzz.kernels import computing, moving
from benchmarks.fuzz.kernels.drawing import SIZES, Draws, Maker, draw
from benchmarks.fuzz.kernels.moving import barrier
from benchmarks.fuzz.kernels.places import Area, Place
from benchmarks.fuzz.kernels.program import Program


def _loaded(maker: Maker, source: Place, area: Area) -> Place | None:
    """Make a tile with the type of its source, loaded from it."""
    tile = maker.tile(area.rows, area.columns, source.dtype)
    if tile is None or not maker.add(f"nisa.dma_copy({tile.name}, {source.text(area)})"):
        return None
    maker.places.append(tile)
    return tile


def _between(maker: Maker) -> None:
    """Draw other instructions in between, which may touch the same tensors."""
    for _ in range(maker.integer(0, 2)):
        maker.one_of((computing.elementwise, computing.copies, moving.store, moving.load_into, computing.reducing))(
            maker
        )


def _computed(maker: Maker, tile: Place, dtype: str) -> Place | None:
    """Make a new tile of results of another one."""
    made = maker.tile(tile.rows, tile.columns, dtype)
    if made is None:
        return None
    line = maker.one_of(
        (
            f"nisa.tensor_scalar({made.name}, {tile.name}, nl.multiply, -1.5, op1=nl.add, operand1=0.5)",
            f"nisa.activation({made.name}, nl.tanh, {tile.name}, scale=0.5)",
            f"nisa.tensor_tensor({made.name}, {tile.name}, {tile.name}, nl.add)",
            f"nisa.tensor_copy({made.name}, {tile.name})",
            f"nisa.tensor_scalar({made.name}, {tile.name}, nl.subtract, {maker.column(Area(tile.rows, 1))})",
        )
    )
    return made if computing.keep(maker, made, line) else None


def publish(maker: Maker, tile: Place) -> None:
    """Return the elements of a tile from the kernel."""
    name, own = maker.new_name("o"), maker.new_name("g")
    if tile.buffer != "sbuf" or len(maker.results) >= maker.most_results:
        return
    rows = tile.rows * maker.cores
    if maker.add(f"{name} = nl.ndarray(({rows}, {tile.columns}), nl.{tile.dtype}, nl.shared_hbm)"):
        maker.bind(own, name, "core", tile.rows)
        maker.results.append(name)
        maker.add(f"nisa.dma_copy({own}, {tile.name})")


def _rows_and_columns(maker: Maker, place: Place) -> tuple[int, int]:
    """Draw rows and columns that cover most of a tensor."""
    rows = place.rows if maker.chance(0.6) else maker.integer((place.rows + 1) // 2, place.rows)
    columns = place.columns if maker.chance(0.3) else maker.integer((place.columns + 1) // 2, place.columns)
    return rows, columns


def overwritten_after_a_load(maker: Maker) -> None:
    """Read a tile after the tensor that it was loaded from was overwritten."""
    source = maker.one_of(maker.writable)
    tile = _loaded(maker, source, maker.somewhere(source, *_rows_and_columns(maker, source))._replace(step=1))
    other = _loaded(maker, maker.places[2], maker.part_of(maker.places[2], whole=0.7)._replace(step=1))
    if tile is None or other is None:
        return
    rows, columns = min(other.rows, source.rows), min(other.columns, source.columns)
    _between(maker)
    place = maker.somewhere(source, rows, columns)
    maker.add(f"nisa.dma_copy({source.text(place)}, {other.text(Area(rows, columns))})")
    _between(maker)
    made = _computed(maker, tile, maker.one_of((tile.dtype, "float32")))
    if made is not None:
        publish(maker, made)


def stored_beside(maker: Maker) -> None:
    """Store results over their inputs, or a few rows or columns beside them, a few times."""
    target = maker.one_of(maker.writable)
    rows = target.rows if maker.chance(0.4) else maker.integer((target.rows + 1) // 2, target.rows)
    columns = maker.integer((target.columns + 1) // 2, target.columns)
    made = None
    for _ in range(maker.integer(1, 3)):
        made = _stored_beside(maker, target, rows, columns)
        if maker.chance(0.2):
            _between(maker)
    if made is not None and maker.chance(0.3):
        publish(maker, made)


def _stored_beside(maker: Maker, target: Place, rows: int, columns: int) -> Place | None:
    """One or two parts of a tensor are loaded, and a result computed from them is stored into a third part."""
    first, second, into = (maker.somewhere(target, rows, columns)._replace(step=1) for _ in range(3))
    tile = _loaded(maker, target, first)
    if tile is None:
        return None
    if maker.chance(0.5):
        made = _computed(maker, tile, target.dtype)
    else:
        other = _loaded(maker, target, second)
        made = maker.tile(rows, columns, target.dtype)
        if other is None or made is None:
            return None
        line = maker.one_of(
            (
                f"nisa.scalar_tensor_tensor({made.name}, {tile.name}, nl.multiply, 0.5, nl.add, {other.name})",
                f"nisa.tensor_tensor({made.name}, {tile.name}, {other.name}, nl.subtract)",
            )
        )
        made = made if computing.keep(maker, made, line) else None
    if made is not None:
        maker.add(f"nisa.dma_copy({target.text(into)}, {made.name})")
    return made


def stored_late(maker: Maker) -> None:
    """Read or write a result's destination, or change the result, before it is stored."""
    target = maker.one_of(maker.writable)
    rows, columns = _rows_and_columns(maker, target)
    source = maker.one_of((maker.places[2], *maker.writable))
    rows, columns = min(rows, source.rows), min(columns, source.columns)
    tile = _loaded(maker, source, maker.somewhere(source, rows, columns)._replace(step=1))
    made = None if tile is None else _computed(maker, tile, target.dtype)
    if made is None:
        return
    into = maker.somewhere(target, rows, columns)._replace(step=1)
    before = _loaded(maker, target, maker.somewhere(target, rows, columns)) if maker.chance(0.6) else None
    if maker.chance(0.4):
        maker.add(
            f"nisa.dma_copy({target.text(maker.somewhere(target, rows, columns))}, {source.text(Area(rows, columns))})"
        )
    if maker.chance(0.3):
        part = maker.part_of(made)
        maker.add(f"nisa.tensor_scalar({made.text(part)}, {made.text(part)}, nl.add, 1.0)")
    maker.add(f"nisa.dma_copy({target.text(into)}, {made.name})")
    if before is not None:
        publish(maker, before)
    if maker.chance(0.3):
        again = _loaded(maker, target, into)
        if again is not None:
            publish(maker, again)


def partly_overwritten(maker: Maker) -> None:
    """A tile whose elements come from several instructions, some of them dead, some alive between others."""
    source = maker.one_of((maker.places[2], *maker.writable))
    tile = _loaded(maker, source, maker.somewhere(source, *_rows_and_columns(maker, source))._replace(step=1))
    if tile is None:
        return
    for _ in range(maker.integer(1, 4)):
        part = maker.part_of(tile, whole=0.2)
        if maker.chance(0.5) and tile.columns >= 3:
            step = maker.integer(2, min(3, tile.columns - 1))
            part = Area(part.rows, (tile.columns + step - 1) // step, part.top, 0, step)
        line = maker.one_of(
            (
                f"nisa.memset({tile.text(part)}, {maker.number()})",
                f"nisa.tensor_scalar({tile.text(part)}, {maker.source(tile, part)}, nl.add, {maker.column(part)})",
                f"nisa.tensor_copy({tile.text(part)}, {maker.source(tile, part)})",
                f"nisa.activation({tile.text(part)}, nl.relu, {maker.source(tile, part)})",
            )
        )
        maker.add(line)
        if maker.chance(0.25):
            _computed(maker, tile, "float32")
    publish(maker, tile)


def changed_operands(maker: Maker) -> None:
    """Draw sums of products whose operands change between the products, and that are read in between."""
    source = maker.one_of(maker.places[:3])
    depth = maker.integer(1, source.rows)
    columns = min(source.columns, 64)
    tiles = [_loaded(maker, source, maker.somewhere(source, depth, columns)._replace(step=1)) for _ in range(2)]
    height, width = maker.integer(1, min(columns, 32)), maker.integer(1, columns)
    sums = [maker.tile(height, 512, "float32", "psum") for _ in range(maker.integer(1, 2))]
    left, right = tiles
    if left is None or right is None or None in sums:
        return
    targets = [item.text(Area(height, width)) for item in sums if item is not None]
    for number in range(maker.integer(2, 6)):
        target = targets[number % len(targets)]
        mode = "False" if number < len(targets) or maker.chance(0.1) else "True"
        spots = maker.integer(0, columns - height), maker.integer(0, columns - width)
        one = left.text(Area(depth, height, 0, spots[0] if maker.chance(0.5) else 0))
        two = right.text(Area(depth, width, 0, spots[1] if maker.chance(0.5) else 0))
        maker.add(f"nisa.nc_matmul({target}, {one}, {two}, accumulate={mode})")
        if maker.chance(0.4):
            changed = maker.one_of((left, right))
            part = maker.part_of(changed)
            maker.add(f"nisa.tensor_scalar({changed.text(part)}, {changed.text(part)}, nl.multiply, 0.5)")
        elif maker.chance(0.3):
            changed = maker.one_of((left, right))
            maker.add(f"nisa.dma_copy({changed.name}, {source.text(maker.somewhere(source, depth, columns))})")
    for target in targets:
        read = maker.tile(height, width, maker.one_of(("float32", "bfloat16")))
        if read is not None and computing.keep(maker, read, f"nisa.tensor_copy({read.name}, {target})"):
            publish(maker, read)


def read_after_a_meeting(maker: Maker) -> None:
    """Read a tile that was loaded before a barrier, after the other core wrote to the tensor it was loaded from."""
    if maker.cores == 1:
        return
    number = maker.integer(0, 1)
    source = maker.writable[number]
    tile = _loaded(maker, source, maker.somewhere(source, *_rows_and_columns(maker, source))._replace(step=1))
    barrier(maker, number)
    other = _loaded(maker, maker.places[2], maker.part_of(maker.places[2], whole=0.7)._replace(step=1))
    if tile is None or other is None:
        return
    rows, columns = min(other.rows, source.rows), min(other.columns, source.columns)
    place = maker.somewhere(source, rows, columns)
    maker.add(f"nisa.dma_copy({source.text(place)}, {other.text(Area(rows, columns))})")
    if maker.chance(0.5):
        barrier(maker, number)
    made = _computed(maker, tile, maker.one_of((tile.dtype, "float32")))
    if made is not None:
        publish(maker, made)


def chains(maker: Maker) -> None:
    """Draw rounds of instructions on the same rows, with reductions whose columns the next instructions take."""
    source = maker.one_of(maker.places[:3])
    tile = _loaded(maker, source, maker.somewhere(source, *_rows_and_columns(maker, source))._replace(step=1))
    for _ in range(maker.integer(2, 5)):
        if tile is None:
            return
        column = maker.tile(tile.rows, 1, "float32")
        into = tile if maker.chance(0.4) else maker.tile(tile.rows, tile.columns, maker.one_of((tile.dtype, "float32")))
        if column is None or into is None:
            return
        line = maker.one_of(
            (
                f"nisa.tensor_reduce({column.name}, nl.maximum, {tile.name}, axis=1, negate=True)",
                f"nisa.activation_reduce({into.name}, nl.exp, {tile.name}, nl.add, {column.name}, scale=0.25)",
                f"nisa.tensor_scalar_reduce({into.name}, {tile.name}, nl.multiply, 0.5, nl.add, {column.name})",
            )
        )
        if not maker.add(line):
            return
        maker.places.append(column)
        if "tensor_reduce" not in line and into is not tile:
            maker.places.append(into)
            tile = into if maker.chance(0.7) else tile
        second = maker.tile(tile.rows, tile.columns, maker.one_of((tile.dtype, "float32")))
        if second is None or not computing.keep(
            maker, second, f"nisa.tensor_scalar({second.name}, {tile.name}, nl.multiply, {column.name})"
        ):
            return
        tile = second
    if tile is not None:
        target = maker.one_of(maker.writable)
        if maker.chance(0.5) and target.rows >= tile.rows and target.columns >= tile.columns:
            maker.add(f"nisa.dma_copy({target.text(maker.somewhere(target, tile.rows, tile.columns))}, {tile.name})")
        else:
            publish(maker, tile)


KINDS: Final[tuple[tuple[Draws, float], ...]] = (
    (moving.load_new, 2.0),
    (moving.load_into, 1.5),
    (moving.store, 3.0),
    (moving.update_in_place, 0.8),
    (moving.copy_hbm, 0.5),
    (moving.new_hbm, 0.8),
    (moving.transpose, 0.5),
    (moving.gather, 0.6),
    (moving.dynamic, 0.1),
    (computing.elementwise, 8.0),
    (computing.copies, 3.0),
    (computing.reducing, 3.0),
    (computing.select, 0.8),
    (computing.searching, 0.5),
    (computing.products, 1.2),
    (moving.barrier, 0.4),
    (moving.swap, 0.4),
    (overwritten_after_a_load, 1.0),
    (stored_beside, 1.2),
    (stored_late, 1.0),
    (partly_overwritten, 1.0),
    (changed_operands, 0.8),
    (read_after_a_meeting, 1.5),
    (chains, 0.8),
)


def random_kernel(seed: int, sizes: str = "", cores: int = 0) -> Program:
    """The kernel of a seed; of the seed's own sizes and cores if they are not given."""
    names = list(SIZES)
    sizes = sizes or names[seed % len(names)]
    return draw(seed, sizes, cores or (2 if seed % 3 == 0 else 1), KINDS, moving.results)
