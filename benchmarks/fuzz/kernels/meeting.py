# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Synchronisation of two cores: barriers, after which they read or write each other's rows, and swapped tiles."""

from __future__ import annotations

from benchmarks.fuzz.kernels.drawing import FLOATS, Maker
from benchmarks.fuzz.kernels.places import Area


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
