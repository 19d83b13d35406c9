# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Diagrams: :func:`neuron_core`, what moves data where, and :func:`logits_or_fused`, what lies in HBM."""

from __future__ import annotations

from typing import Final, NamedTuple

from nkilib.experimental.loss import choose_linear_tiling
from nkilib.experimental.loss.linear.block_schedule import position_parts
from nkilib.experimental.loss.linear.tiling import backward_bytes, split_backward_bytes
from nkilib.simulator.hardware.generations import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS, PSUM_PARTITION_BYTES, TRN2

from .svg import MARGIN, SMALL, WIDTH, Picture

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


class _Engine(NamedTuple):
    """An engine of the diagram: its name, its work, instructions, and whether it has access to PSUM."""

    name: str
    work: str
    instructions: tuple[str, ...]
    has_psum: bool = True


_ENGINES: Final = (
    _Engine("Tensor", "matrix products", ("nc_matmul", "nc_transpose")),
    _Engine("Vector", "elementwise, sums of rows", ("tensor_tensor", "tensor_reduce")),
    _Engine("Scalar", "functions such as exp", ("activation", "activation_reduce")),
    _Engine("GpSimd", "elementwise, indices, masks", ("tensor_tensor", "iota"), has_psum=False),
)


def neuron_core() -> Picture:
    """Draw the memories and engines of a NeuronCore, and the instructions that move data between them."""
    sbuf = f"{TRN2.sbuf_partition_bytes // _KIB} KiB"
    sbuf_all = f"{PARTITIONS * TRN2.sbuf_partition_bytes // _MIB} MiB"
    psum_all = f"{PARTITIONS * PSUM_PARTITION_BYTES // _MIB} MiB"
    dma = TRN2.timing.dma
    height = 556
    picture = Picture(
        height,
        "A NeuronCore: memories, engines and what moves data",
        "sizes of trn2; the calls are those of nki.isa",
        f"HBM is the memory of the device; its tensors are the arguments and results of a kernel. dma_copy moves data "
        f"between HBM and SBUF with {dma.engines} DMA engines at {dma.core_gb_per_s:.0f} GB/s. SBUF has {PARTITIONS} "
        f"partitions of {sbuf}, {sbuf_all} in all. PSUM has {PARTITIONS} partitions with {PSUM_BANKS} banks of "
        f"{PSUM_BANK_BYTES // _KIB} KiB, {psum_all} in all. The Tensor engine reads SBUF and writes PSUM: nc_matmul. "
        "Vector and Scalar read and write SBUF and PSUM. GpSimd reads and writes SBUF only. Results of products go "
        "from PSUM to SBUF by Vector or Scalar, with tensor_copy or activation.",
    )
    top, bottom, core_left = 82, height - 100, 204
    picture.rect(core_left, top - 8, WIDTH - MARGIN - core_left, bottom - top + 20, "card edge", radius=8)
    picture.text(core_left + 12, top + 12, "NeuronCore", "muted", "b", SMALL)
    _draw_hbm(picture, top, bottom, dma.engines, dma.core_gb_per_s)
    _draw_sbuf(picture, core_left + 14, top + 24, bottom, sbuf, sbuf_all)
    _draw_engines(picture, core_left + 164, top + 24, bottom)
    _draw_psum(picture, WIDTH - MARGIN - 116, top + 24, bottom, psum_all)
    rows = (
        ("HBM to SBUF, and back:", "dma_copy", "DMA engines"),
        ("two tiles of SBUF, their product to PSUM:", "nc_matmul", "Tensor"),
        ("PSUM to SBUF:", "tensor_copy, activation", "Vector, Scalar"),
    )
    for index, (what, call, engine) in enumerate(rows):
        y = height - 62 + 20 * index
        picture.text(MARGIN, y, what, size=SMALL)
        picture.text(MARGIN + 268, y, call, style="m b", size=SMALL)
        picture.text(MARGIN + 462, y, engine, "muted", size=SMALL)
    return picture


def _draw_hbm(picture: Picture, top: float, bottom: float, engines: int, rate: float) -> None:
    """Draw HBM on the left and the DMA engines beside it."""
    picture.rect(MARGIN, top - 8, 92, bottom - top + 20, "warm edge", radius=8)
    middle = (top + bottom) / 2
    picture.text(MARGIN + 46, middle - 40, "HBM", style="b", anchor="middle")
    words = ("off chip:", "arguments", "and results", "of a kernel")
    picture.lines(MARGIN + 46, middle - 18, words, "muted", anchor="middle")
    left, right = MARGIN + 92, 218
    center = (left + right - 14) / 2
    picture.arrow((left + 2, middle), (right - 2, middle), both=True, width=2.5)
    picture.text(center, middle - 30, "DMA", style="b", size=13, anchor="middle")
    picture.text(center, middle - 13, "dma_copy", style="m", size=12, anchor="middle")
    picture.lines(center, middle + 21, (f"{engines} engines", f"{rate:.0f} GB/s"), "muted", size=12, anchor="middle")


def _draw_sbuf(picture: Picture, left: float, top: float, bottom: float, partition: str, whole: str) -> None:
    """Draw SBUF as rows, one for each of some partitions."""
    width = 112
    picture.rect(left, top, width, bottom - top, "soft edge", radius=6)
    picture.text(left + width / 2, top + 22, f"SBUF, {whole}", style="b", size=13, anchor="middle")
    picture.text(left + width / 2, top + 40, f"{PARTITIONS} partitions", "muted", size=12, anchor="middle")
    picture.text(left + width / 2, top + 56, f"of {partition}", "muted", size=12, anchor="middle")
    first, step = top + 72, 21
    count = int((bottom - first - 4) // step)
    for index in range(count):
        y = first + index * step
        picture.rect(left + 8, y, width - 16, step - 5, "card edge", radius=2)
        name = {0: "partition 0", 1: "1", 2: "2", count - 1: f"{PARTITIONS - 1}"}.get(index, "")
        picture.text(left + width / 2, y + 11, name, "muted", size=12, anchor="middle")


def _draw_engines(picture: Picture, left: float, top: float, bottom: float) -> None:
    """Draw the engines between SBUF and PSUM, with arrows to the memories that each reads and writes."""
    width, gap = 188, 12
    tall = (bottom - top - gap * (len(_ENGINES) - 1)) / len(_ENGINES)
    for index, engine in enumerate(_ENGINES):
        y = top + index * (tall + gap)
        middle, is_tensor = y + tall / 2, index == 0
        picture.rect(left, y, width, tall, "fresh edge", radius=6)
        picture.text(left + 10, y + 19, engine.name, style="b")
        picture.text(left + 10, y + 36, engine.work, "muted", size=12)
        picture.lines(left + 10, y + 54, engine.instructions, style="m", size=12)
        picture.arrow((left - 36, middle), (left - 2, middle), both=not is_tensor)
        if engine.has_psum:
            picture.arrow((left + width + 2, middle), (left + width + 24, middle), both=not is_tensor)


def _draw_psum(picture: Picture, left: float, top: float, bottom: float, whole: str) -> None:
    """Draw PSUM beside the engines that have access to it."""
    width = 102
    tall = (bottom - top - 36) / 4 * 3 + 24
    picture.rect(left, top, width, tall, "soft edge", radius=6)
    picture.text(left + width / 2, top + 22, f"PSUM, {whole}", style="b", size=13, anchor="middle")
    words = (f"{PARTITIONS} partitions", f"of {PSUM_BANKS} banks", f"of {PSUM_BANK_BYTES // _KIB} KiB")
    picture.lines(left + width / 2, top + 44, words, "muted", size=12, anchor="middle")
    words = ("sums of", "products", "in float32")
    picture.lines(left + width / 2, top + 118, words, "muted", size=12, anchor="middle")
    picture.lines(left + width / 2, top + tall + 24, ("not from", "GpSimd"), "muted", size=12, anchor="middle")


class _Piece(NamedTuple):
    """A tensor in HBM: its name, its bytes, and its fill."""

    name: str
    nbytes: int
    kind: str


class _Way(NamedTuple):
    """A way to compute the loss: its call, its matrix products, and what lies in HBM beside what all ways have."""

    call: str
    products: str
    pieces: tuple[_Piece, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the pieces."""
        return sum(piece.nbytes for piece in self.pieces)


# Llama 3.1 8B: tokens, features and classes.
TOKENS, FEATURES, CLASSES = 8192, 4096, 128_256


def loss_bytes(tokens: int, features: int, classes: int) -> int:
    """Compute the memory of the linear loss kernels beyond inputs and gradients.

    Args:
        tokens: the number of positions, in bfloat16.
        features: D, the number of features.
        classes: V, the number of classes.

    Returns:
        The number of bytes of HBM.
    """
    tiling = choose_linear_tiling(tokens, features, classes, "bfloat16", "backward")
    parts = position_parts(tokens, features)
    if parts.is_split:
        return split_backward_bytes(parts, features, classes, tiling, input_itemsize=2, has_weight_sum=False)
    return backward_bytes(tokens, features, *tiling)


def _ways() -> tuple[_Way, ...]:
    logits = TOKENS * CLASSES
    stock = (
        _Piece("logits, bfloat16", 2 * logits, "grey"),
        _Piece("logits, float32", 4 * logits, "blue"),
        _Piece("log-softmax, float32", 4 * logits, "red"),
        _Piece("gradient, float32", 4 * logits, "pink"),
    )
    fused = (_Piece("sums of gradients, float32", loss_bytes(TOKENS, FEATURES, CLASSES), "green"),)
    return (
        _Way("F.cross_entropy", "of logits.float(): 3 products", stock),
        _Way("cross_entropy", "inplace=True: 3 products", (_Piece("logits, then gradient", 2 * logits, "grey"),)),
        _Way("linear_cross_entropy", "logits on chip: 4 products", fused),
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / _GIB:.1f} GiB" if nbytes >= _GIB else f"{nbytes / _MIB:.0f} MiB"


def logits_or_fused() -> Picture:
    """Draw what lies in HBM for the loss of PyTorch, the loss from logits in place, and the fused loss."""
    ways = _ways()
    common = 2 * 2 * FEATURES * (TOKENS + CLASSES)
    height, ground = 520, 452
    unit = (ground - 120) / (common + max(way.nbytes for way in ways))
    sizes = f"{TOKENS:,} tokens of Llama 3.1 8B, D = {FEATURES:,}, V = {CLASSES:,}, bfloat16"
    spoken = " ".join(
        f"{way.call}, {way.products}: {', '.join(f'{piece.name} {_size(piece.nbytes)}' for piece in way.pieces)}."
        for way in ways
    )
    picture = Picture(
        height,
        "What lies in HBM: from logits, or fused with the output layer",
        f"{sizes}; arithmetic from shapes, heights to scale",
        f"{sizes}. Every way has hidden states, weight and their gradients, {_size(common)}. Beside them: {spoken}",
    )
    pitch, width = (WIDTH - 2 * MARGIN) / len(ways), 196
    for index, way in enumerate(ways):
        left = MARGIN + pitch * index
        y = ground - unit * common
        picture.rect(left, y, width, unit * common, "box edge")
        picture.text(left + width / 2, y + unit * common / 2 - 3, "hidden states, weight,", size=12, anchor="middle")
        words = f"their gradients {_size(common)}"
        picture.text(left + width / 2, y + unit * common / 2 + 13, words, size=12, anchor="middle")
        for piece in way.pieces:
            tall = unit * piece.nbytes
            y -= tall
            picture.rect(left, y, width, tall, f"{piece.kind} edge")
            is_low = tall < 24
            where = y - 9 if is_low else y + tall / 2 + 5
            kind = "ink" if is_low else "on"
            picture.text(left + width / 2, where, f"{piece.name}: {_size(piece.nbytes)}", kind, "", 12.5, "middle")
        total = f"+ {_size(way.nbytes)}"
        picture.text(
            left + width / 2, y - (30 if unit * way.pieces[-1].nbytes < 24 else 12), total, "ink", "b", 17, "middle"
        )
        picture.text(left + width / 2, ground + 24, way.call, style="m b", size=13.5, anchor="middle")
        picture.text(left + width / 2, ground + 43, way.products, "muted", size=SMALL, anchor="middle")
    return picture
