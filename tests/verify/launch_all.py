# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launch kernel cases and probes on whatever NKI there is: `python -m tests.verify.launch_all DIRECTORY NAMES`.

NAMES is a file with the names of steps. Each observation is in a directory that has the number of its step, for
whoever judges them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nkilib.verify.probes.frameworks import FrameworkProbe
from nkilib.verify.registry import all_steps
from nkilib.verify.step import Step
from tests.selected import read_names


def steps() -> list[Step]:
    """Return the steps that take no seconds and no framework."""
    results = [step for some in all_steps(("kernels", "probes")).values() for step in some]
    return [step for step in results if "32128" not in step.name and not isinstance(step, FrameworkProbe)]


def main(directory: str, names: str) -> None:
    """Launch and save steps, with the arguments that they have without a device: nobody needs 4 GB."""
    wanted = set(read_names(names))
    for number, step in enumerate(steps()):
        if step.name in wanted:
            home = Path(directory) / str(number)
            home.mkdir()
            step.observe(is_device=False).save(home)


if __name__ == "__main__":
    main(*sys.argv[1:])
