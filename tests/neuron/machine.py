# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Processes as on a Neuron machine: the stand-in for NKI is on the path, and `NKILIB_BACKEND` says `neuron`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS

SITE: Final = Path(__file__).resolve().parent / "site"
"""Holds the package `nki`; nothing else puts it on a path."""

# What NKI 0.7 deprecates is no part of the kernels either.
_REFUSED: Final = ("-W", "error:depends_on() without kind=:DeprecationWarning")

_CHOSEN: Final = ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_PRECISE_FP", "NKI_COMPILER_FRONTEND")


def run(*command: str | Path, backend: str = "neuron", before: Path = SITE) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments.

    Args:
        command: the arguments after `python`.
        backend: value of NKILIB_BACKEND.
        before: directories on the import path ahead of the stand-in.
    """
    path = os.pathsep.join(map(str, dict.fromkeys((before, SITE, CHECKOUT))))
    environment = with_checkout(*_CHOSEN, NKILIB_BACKEND=backend, PYTHONPATH=path)
    return subprocess.run(
        [sys.executable, *_REFUSED, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
