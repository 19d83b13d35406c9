# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The families of kernels that ``profile`` and ``tune`` know (:data:`FAMILIES`), and the choice of one of them.

:func:`add_family_arguments` adds the options to a command, and :func:`kernels_of` reads the options.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from ..arguments import positive
from .family import Family, LaterNames
from .losses import (
    LABELS,
    SEQUENCES,
    CtcKernels,
    DistillationKernels,
    ElementwiseKernels,
    MultilabelMarginKernels,
    MultiMarginKernels,
    NllLossKernels,
    RowwiseKernels,
)
from .output_layer import (
    AXES,
    LAYOUTS,
    LinearDistillationKernels,
    LinearKernels,
    LogitsKernels,
    SoftmaxKernels,
    TokenScoreKernels,
)

FAMILIES: Final[Sequence[type[Family]]] = (
    LogitsKernels,
    LinearKernels,
    TokenScoreKernels,
    SoftmaxKernels,
    NllLossKernels,
    DistillationKernels,
    LinearDistillationKernels,
    ElementwiseKernels,
    RowwiseKernels,
    MultiMarginKernels,
    MultilabelMarginKernels,
    CtcKernels,
)


def add_family_arguments(command: argparse.ArgumentParser, several: bool) -> None:
    """Add the options that select a kernel and its tiling to the parser of a command.

    Args:
        command: the parser.
        several: whether an option of the tiling accepts several values to try, as ``tune`` does.
    """
    named = command.add_argument(
        "--family",
        metavar="NAME",
        help="the kernels: %(choices)s (default: cross_entropy; linear_cross_entropy with --features)",
    )
    # Set afterwards: add_argument would go through the choices, which loads the kernels.
    named.choices = LaterNames(lambda: tuple(name for family in FAMILIES for name in family.NAMES))
    command.add_argument(
        "--extended", action="store_true", help="the extended cross-entropy kernel; --arg gives its options"
    )
    command.add_argument(
        "--features",
        type=positive,
        metavar="D",
        help="linear cross-entropy from hidden states [N, D] and weights [V, D]; --arg gives its options",
    )
    command.add_argument("--weight-layout", choices=LAYOUTS, help="with --features: W is [V, D] (default) or [D, V]")
    command.add_argument(
        "--ids",
        type=positive,
        metavar="K",
        help="with --family linear_token_scores: target ids per position (default 1)",
    )
    command.add_argument(
        "--teacher-features",
        type=positive,
        metavar="DT",
        help="with --family linear_distillation: features of the teacher; --features are those of the student",
    )
    command.add_argument(
        "--axis",
        choices=AXES,
        help="with --family softmax or log_softmax: the last (default) or the first axis of [N, V]",
    )
    for name, letter, default in (("sequences", "B", SEQUENCES), ("labels", "S", LABELS)):
        text = f"with --family ctc_loss (N steps, V classes): {name} (default {default})"
        command.add_argument(f"--{name}", type=positive, metavar=letter, help=text)
    sizes = {size: family for family in reversed(FAMILIES) for size in family.SIZES}
    for size, family in sizes.items():
        option, letter = f"--{size.replace('_', '-')}", family.SIZES[size]
        if several:
            command.add_argument(
                option, type=positive, nargs="+", metavar=letter, help=f"{family.CONDITION}sizes to try"
            )
        else:
            chosen = f"{family.CONDITION}default: chosen by {family.CHOOSER}"
            command.add_argument(option, type=positive, metavar=letter, help=chosen)


def kernels_of(options: argparse.Namespace) -> Family:
    """Return the family that the command line selects.

    The process ends with an error if options of two families are mixed, or if the family has no such kernel.
    """
    family: type[Family] = LinearKernels if options.features else LogitsKernels
    if options.family:
        (family,) = (candidate for candidate in FAMILIES if options.family in candidate.NAMES)
    for other in FAMILIES:
        foreign = [name for name in other.OPTIONS if name not in family.OPTIONS and getattr(options, name)]
        if foreign:
            options.refuse(f"argument --{foreign[0].replace('_', '-')}: is for kernels {other.WHICH}")
    kernels = family(options)
    if kernels.refusal:
        options.refuse(kernels.refusal)
    return kernels
