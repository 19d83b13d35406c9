# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks that the output files of a command can be written, made before the run, which may take a while."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def output_file(text: str) -> str:
    """Check the name of an output file and return it.

    Raises:
        argparse.ArgumentTypeError: if it cannot be written.
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


def picture_file(text: str) -> str:
    """Check the name of an output file whose suffix is a picture format of matplotlib, and return it."""
    output_file(text)
    formats = picture_formats()
    suffix = Path(text).suffix[1:]
    if formats and suffix.lower() not in formats:
        got = repr(suffix) if suffix else "none"
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(formats)}, got {got} in {text!r}")
    return text


def picture_formats() -> list[str]:
    """Return matplotlib's picture formats by suffix; none without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return []
    return sorted(FigureCanvasAgg.get_supported_filetypes())
