"""Other processes, in which nkilib's kernels say `nki`, as on a machine with the Neuron SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]

_STAND_IN: Final = """\
from nkilib.simulator.api import {module} as _simulated

__all__ = _simulated.__all__
globals().update({{name: getattr(_simulated, name) for name in __all__}})
"""


def write_stand_in(directory: Path) -> None:
    """Write a package `nki` with the names of the simulator's, for `NKILIB_BACKEND=neuron` to find."""
    package = directory / "nki"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_STAND_IN.format(module="nki"))
    (package / "isa.py").write_text(_STAND_IN.format(module="isa"))
    (package / "language.py").write_text(_STAND_IN.format(module="language"))


def run(script: str, module: str, kernel: str, directory: Path) -> dict[str, Any]:
    """Run a module of this package on a kernel, as on hardware.

    Args:
        script: `klr_parse` or `hardware_view`.
        module: that holds the kernel; from `directory`, or installed.
        kernel: its name there.
        directory: where the stand-in goes.

    Returns:
        The JSON that the script printed, or `{"crashed": signal}`.
    """
    write_stand_in(directory)
    path = os.pathsep.join(str(each) for each in (directory, ROOT))
    environment = {**os.environ, "PYTHONPATH": path, "NKILIB_BACKEND": "neuron"}
    command = [sys.executable, "-m", f"tests.language.{script}", module, kernel]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode < 0:
        return {"crashed": -done.returncode}
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
