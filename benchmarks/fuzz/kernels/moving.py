# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Draws of instructions that move elements: loads, stores, copies, transposes, gathers and scatters, and results.

Two cores also wait for each other, read or write each other's rows after that, and swap tiles.
"""

from __future__ import annotations

from benchmarks.fuzz.kernels.drawing import FLOATS, Maker
from benchmarks.fuzz.kernels.places import Area, Place


def load_new(maker: Maker) -> Place | None:
    """A tile that holds some part of an HBM tensor."""
    source = maker.one_of([place for place in maker.places if not place.on_chip])
    area = maker.part_of(source)
    dtype = source.dtype if maker.chance(0.7) else maker.one_of(FLOATS)
    tile = maker.tile(area.rows, area.columns, dtype)
    if tile is not None and maker.add(f"nisa.dma_copy({tile.name}, {source.text(area)})"):
        maker.places.append(tile)
        return tile
    return None


def load_into(maker: Maker) -> None:
    """Some part of a tile is loaded, maybe over what was there."""
    tile = maker.any_tile() if maker.on_chip() else load_new(maker)
    if tile is None or tile.buffer != "sbuf":
        return
    area = maker.part_of(tile)
    sources = [
        place
        for place in maker.places
        if not place.on_chip and place.rows >= area.rows and place.columns >= area.columns
    ]
    if sources:
        source = maker.one_of(sources)
        place = maker.somewhere(source, area.rows, area.columns)
        maker.add(f"nisa.dma_copy({tile.text(area)}, {source.text(place)})")


def store(maker: Maker) -> None:
    """Some part of a tile is stored; sometimes twice, to two places, or read again."""
    if not maker.on_chip():
        load_new(maker)
        return
    tile = maker.any_tile()
    target = maker.one_of(maker.writable)
    rows, columns = min(tile.rows, target.rows), min(tile.columns, target.columns)
    if not maker.chance(0.5):
        rows, columns = maker.integer(1, rows), maker.integer(1, columns)
    area, place = maker.somewhere(tile, rows, columns), maker.somewhere(target, rows, columns)
    maker.add(f"nisa.dma_copy({target.text(place)}, {tile.text(area)})")
    if maker.chance(0.25):
        again = maker.one_of(maker.writable)
        if again.rows >= rows and again.columns >= columns:
            maker.add(f"nisa.dma_copy({again.text(maker.somewhere(again, rows, columns))}, {tile.text(area)})")
    if maker.chance(0.2):
        read = maker.tile(rows, columns, maker.one_of((tile.dtype, target.dtype)))
        if read is not None and maker.add(f"nisa.dma_copy({read.name}, {target.text(place)})"):
            maker.places.append(read)


def update_in_place(maker: Maker) -> None:
    """Chunks of columns, or of rows, of an HBM tensor are loaded, worked on and stored where they came from."""
    target = maker.one_of(maker.writable)
    by_rows = maker.chance(0.3)
    chunks = maker.integer(1, 3)
    size = (target.rows if by_rows else target.columns) // chunks
    overlap = maker.integer(0, 2) if maker.chance(0.3) else 0
    for number in range(chunks if size else 0):
        start = number * size
        length = min(size + overlap, (target.rows if by_rows else target.columns) - start)
        area = Area(length, target.columns, start) if by_rows else Area(target.rows, length, 0, start)
        tile = maker.tile(area.rows, area.columns, maker.one_of((target.dtype, target.dtype, "float32")))
        if tile is None or not maker.add(f"nisa.dma_copy({tile.name}, {target.text(area)})"):
            return
        maker.places.append(tile)
        work = maker.one_of(
            (
                f"nisa.tensor_scalar({tile.name}, {tile.name}, nl.multiply, {maker.number()})",
                f"nisa.tensor_tensor({tile.name}, {tile.name}, {tile.name}, nl.add)",
                f"nisa.activation({tile.name}, nl.exp, {tile.name}, scale={maker.number()})",
            )
        )
        maker.add(work)
        elsewhere = target if maker.chance(0.8) else maker.one_of(maker.writable)
        if elsewhere.rows >= area.top + area.rows and elsewhere.columns >= area.left + area.columns:
            maker.add(f"nisa.dma_copy({elsewhere.text(area)}, {tile.name})")


def copy_hbm(maker: Maker) -> None:
    """Draw a copy from one HBM tensor to another, or within one."""
    target = maker.one_of(maker.writable)
    source = maker.one_of([place for place in maker.places if not place.on_chip])
    rows, columns = (
        maker.integer(1, min(target.rows, source.rows)),
        maker.integer(1, min(target.columns, source.columns)),
    )
    into, place = maker.somewhere(target, rows, columns), maker.somewhere(source, rows, columns)
    maker.add(f"nisa.dma_copy({target.text(into)}, {source.text(place)})")


def new_hbm(maker: Maker) -> None:
    """An HBM tensor of the kernel, most of them results, and what is in it first."""
    columns = maker.one_of(maker.sizes.columns)
    dtype = maker.one_of((*FLOATS, "float32"))
    is_result = maker.chance(0.8) and len(maker.results) < 3
    region = "shared_hbm" if is_result else "private_hbm"
    rows = maker.rows * (maker.cores if is_result else 1)
    name, own = maker.new_name("o"), maker.new_name("g")
    if not maker.add(f"{name} = nl.ndarray(({rows}, {columns}), nl.{dtype}, nl.{region})"):
        return
    if is_result:
        maker.bind(own, name, "core")
    else:
        maker.add(f"{own} = {name}")
    place = Place(own, maker.rows, columns, dtype, "hbm")
    tile = maker.tile(maker.rows, columns, maker.one_of((dtype, "float32")))
    fitting = [
        item
        for item in maker.on_chip()
        if item.buffer == "sbuf" and item.rows >= maker.rows and item.columns >= columns
    ]
    if fitting and maker.chance(0.7):
        chosen = maker.one_of(fitting)
        is_filled = maker.add(f"nisa.dma_copy({own}, {chosen.text(maker.somewhere(chosen, maker.rows, columns))})")
    else:
        is_filled = tile is not None and maker.add(f"nisa.memset({tile.name}, {maker.number()})")
        is_filled = is_filled and tile is not None and maker.add(f"nisa.dma_copy({own}, {tile.name})")
    if is_filled:
        maker.places.append(place)
        maker.writable.append(place)
        maker.results += [name] if is_result else []


def transpose(maker: Maker) -> None:
    """Draw a transpose by the DMA, the Tensor engine or the Vector engine."""
    if not maker.on_chip():
        return
    source = maker.any_tile()
    size = min(32, source.rows, source.columns)
    rows, columns = maker.integer(1, min(source.rows, 128)), maker.integer(1, min(source.columns, 128))
    kind = maker.integer(0, 2)
    if kind == 2:
        rows = columns = size
    tile = maker.tile(columns, rows, source.dtype, "psum" if kind == 1 and source.buffer == "sbuf" else "sbuf")
    if tile is None:
        return
    area = maker.somewhere(source, rows, columns)._replace(step=1)
    operands = f"{tile.text(Area(columns, rows))}, {source.text(area)}"
    line = {
        0: f"nisa.dma_transpose({operands})",
        1: f"nisa.nc_transpose({operands}, engine=nisa.tensor_engine)",
        2: f"nisa.nc_transpose({operands}, engine=nisa.vector_engine)",
    }[kind]
    if maker.add(line) and (tile.rows, tile.columns) == (columns, rows):
        maker.places.append(tile)


def gather(maker: Maker) -> None:
    """Rows that indices choose, of what is read or written; scattered too."""
    rows = maker.integer(1, maker.rows)
    index = maker.tile(rows, 1, maker.arguments[3].dtype)
    if index is None or not maker.add(
        f"nisa.dma_copy({index.name}, indices[0:{rows}, {maker.integer(0, 3)}:][:, 0:1])"
    ):
        return
    if maker.chance(0.5) or not maker.on_chip():
        source = maker.one_of([maker.places[2], *maker.writable])
        tile = maker.tile(rows, source.columns, source.dtype)
        if tile is not None and maker.add(f"nisa.dma_copy({tile.name}, {source.name}.vector_select(0, {index.name}))"):
            maker.places.append(tile)
        return
    target = maker.one_of(maker.writable)
    fitting = [item for item in maker.on_chip() if item.rows >= rows and item.columns >= target.columns]
    if fitting:
        chosen = maker.one_of(fitting)
        area = maker.somewhere(chosen, rows, target.columns)
        maker.add(f"nisa.dma_copy({target.name}.vector_select(0, {index.name}), {chosen.text(area)})")


def dynamic(maker: Maker) -> None:
    """Columns from where a scalar says, which is loaded from the indices."""
    name = maker.new_name("s")
    row = maker.integer(0, maker.rows - 1)
    cell = f"indices[{row}:{row + 1}, 0:1]"
    if not maker.add(f"{name} = nisa.scalar_load({cell})"):
        return
    source = maker.one_of(maker.places[:3])
    tile = maker.tile(source.rows, 1, source.dtype)
    if tile is not None and maker.add(
        f"nisa.dma_copy({tile.name}, {source.name}.slice(1, 0, 1).select(1, 0).expand_dim(1))"
    ):
        maker.places.append(tile)
    wide = maker.tile(1, source.columns, source.dtype)
    if wide is not None and maker.add(f"nisa.dma_copy({wide.name}, {source.name}.select(0, {name}).expand_dim(0))"):
        maker.places.append(wide)


def results(maker: Maker) -> None:
    """Return some of the computed tiles from the kernel at its end; nobody reads the others."""
    for _ in range(maker.integer(1, 3)):
        store(maker)
        new_hbm(maker)


def barrier(maker: Maker, number: int | None = None) -> None:
    """The cores wait for each other, and take each other's rows of an argument: of this one, or of any."""
    if maker.cores == 1:
        return
    number = maker.integer(0, 1) if number is None else number
    maker.add(f"nisa.core_barrier(a{number}, (0, 1))", is_tried=False)
    maker.swapped[number] = not maker.swapped[number]
    # Drawn on one core, on which this one's rows stand for the other's.
    first = "other" if maker.swapped[number] else "core"
    maker.add(f"h{number} = a{number}[{first} * {maker.rows} : {first} * {maker.rows} + {maker.rows}]", is_tried=False)


def swap(maker: Maker) -> None:
    """The cores hand each other a tile."""
    tiles = [tensor for tensor in maker.on_chip() if tensor.buffer == "sbuf" and tensor.dtype in FLOATS]
    if maker.cores == 1 or not tiles:
        return
    source = maker.one_of(tiles)
    area = maker.part_of(source)
    target = maker.tile(source.rows, source.columns, source.dtype)
    if target is None or not maker.add(f"nisa.memset({target.name}, 0.0)"):
        return
    maker.places.append(target)
    operands = f"{source.text(area)}, {target.text(Area(area.rows, area.columns, area.top, area.left, area.step))}"
    line = f"nisa.sendrecv({operands}, other, other, {maker.new_name('')})"
    if maker.chance(0.3):
        line = f"nisa.sendrecv_compute({operands}, other, other, nl.add)"
    maker.add(line, is_tried=False)
