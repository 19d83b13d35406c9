# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments and output that commands share: the parser, types, arguments of a launch, output files, and folded lines.

:class:`Parser` is the parser of all commands; :func:`fail` prints an error and returns the exit code, and
:func:`folded` folds prose into lines of :data:`MOST_COLUMNS`. :func:`dtype_name` reads a type, also by a short name
(:data:`SHORT_DTYPES`), and :func:`positive` a positive integer. :func:`add_launch_arguments` adds the arguments of a
launch, among them its type (:data:`DTYPES`), and :func:`reason_against_profiles` returns why launches cannot be
modelled here. :func:`output_file` and :func:`picture_file` check output files before the run, which may take a while;
:func:`picture_formats` lists the suffixes of pictures.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

MOST_COLUMNS = 88
"""The width of tables and prose that commands print; long names, such as those of files, may be wider."""
_TARGETS = ("trn2", "trn3")  # the kernels need trn2 or newer
# The types of the tensors of a launch.
DTYPES = ("bfloat16", "float32", "float16")
# Short names of types, which every argument of a command accepts.
SHORT_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "f32": "float32",
    "fp32": "float32",
    "tf32": "tfloat32",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "f8e4m3": "float8_e4m3",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
_DIRECTIONS = ("forward", "backward", "forward_backward", "mixture")


class _Formatter(argparse.HelpFormatter):
    """A help formatter with lines of at most :data:`MOST_COLUMNS`, also on a wider terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, MOST_COLUMNS))


class Parser(argparse.ArgumentParser):
    """The parser of a command, which prints an error with a hint at ``--help`` instead of the usage of 20 lines."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments, and end the process with an error that suggests the nearest option if an argument is
        unknown.
        """
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            likely = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, 1)
            guess = f"; did you mean {likely[0]}?" if likely else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{guess}")
        return known, []

    def error(self, message: str) -> NoReturn:
        """Print the error on stderr and end the process with exit code 2.

        Raises:
            SystemExit: always.
        """
        self.exit(2, f"{self.prog}: error: {message}\nsee `{self.prog} --help`\n")


def dtype_name(text: str) -> str:
    """Return the full name of a type, such as ``"bfloat16"``.

    Args:
        text: the name or short name of the type, with or without ``nl.``; any other text is returned without ``nl.``.
    """
    name = text.removeprefix("nl.")
    return SHORT_DTYPES.get(name, name)


def positive(text: str) -> int:
    """Convert an argument of the command line to a positive integer.

    Raises:
        argparse.ArgumentTypeError: if the text is not a positive integer.
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def add_launch_arguments(
    command: argparse.ArgumentParser, *, targets: Sequence[str] = _TARGETS, is_required: bool = True
) -> None:
    """Add the options of a launch of this library's kernels, except the tiling, to the parser of a command.

    Args:
        command: the parser.
        targets: the hardware generations to offer.
        is_required: whether positions and vocabulary must be given and the other options have defaults; otherwise a
            missing option is None.
    """
    command.add_argument("--positions", type=positive, required=is_required, metavar="N", help="positions (tokens)")
    command.add_argument("--vocab", type=positive, required=is_required, metavar="V", help="classes")
    command.add_argument(
        "--dtype",
        type=dtype_name,
        choices=DTYPES,
        default=DTYPES[0] if is_required else None,
        help=f"type of logits and tiles, or of hidden states and weights (default {DTYPES[0]}); bf16, f32, fp32 "
        "and so on are short for them",
    )
    command.add_argument(
        "--direction",
        choices=_DIRECTIONS,
        default=_DIRECTIONS[0] if is_required else None,
        metavar="NAME",
        help="forward (default), backward, forward_backward (with --features) or mixture (with --family "
        "linear_distillation)",
    )
    command.add_argument(
        "--target", choices=targets, default="trn2" if is_required else None, help="hardware generation (default trn2)"
    )


def reason_against_profiles() -> str | None:
    """Return why no profile can be made here: no simulator, or an invalid environment variable; None if one can be
    made.
    """
    try:
        from nkilib.nki import NOT_SIMULATED, SIMULATED
        from nkilib.simulator.hardware.options import current_options

        current_options()
    except (ImportError, ValueError) as error:
        return str(error)
    return None if SIMULATED else NOT_SIMULATED


def fail(command: str, message: str) -> int:
    """Print the error message of a command on stderr, and return exit code 1."""
    print(f"python -m nkilib {command}: error: {message}", file=sys.stderr)
    return 1


def folded(text: str, head: str = "", indent: int | None = None) -> str:
    """Return ``head`` and ``text`` in lines of at most :data:`MOST_COLUMNS`; words are never divided.

    Args:
        text: one line or several; every line is folded separately.
        head: the begin of the first line.
        indent: the number of spaces before all lines but the first; None: the width of ``head``.
    """
    space = " " * (len(head) if indent is None else indent)
    lines: list[str] = []
    for line in text.splitlines():
        fold = textwrap.TextWrapper(MOST_COLUMNS, break_long_words=False, break_on_hyphens=False)
        fold.initial_indent, fold.subsequent_indent = space if lines else head, space
        lines += fold.wrap(line) or [""]
    return "\n".join(lines)


def output_file(text: str) -> str:
    """Check the name of an output file and return it.

    Raises:
        argparse.ArgumentTypeError: if the file cannot be written.
    """
    path = Path(text)
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"must name a file, got the directory {text!r}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no directory {str(path.parent)!r}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{text!r} can not be written")
    except OSError as error:  # of a name that is too long, for instance
        raise argparse.ArgumentTypeError(f"{text!r} can not be written: {error.strerror}") from None
    return text


def picture_formats() -> list[str]:
    """Return the file suffixes, without a dot, that matplotlib can write as pictures; empty without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return []
    return sorted(FigureCanvasAgg.get_supported_filetypes())


def picture_file(text: str) -> str:
    """Check the name of an output file for a picture and return it.

    Raises:
        argparse.ArgumentTypeError: if the file cannot be written, or matplotlib does not support its suffix.
    """
    output_file(text)
    formats = picture_formats()
    suffix = Path(text).suffix[1:]
    if formats and suffix.lower() not in formats:
        got = repr(suffix) if suffix else "none"
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(formats)}, got {got} in {text!r}")
    return text
