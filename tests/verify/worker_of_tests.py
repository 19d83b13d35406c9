# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A stand-in for the worker, which does what the name of the step says."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(stage: str, directory: str, name: str) -> None:
    """Note the stage and its environment, then crash, hang or end."""
    log = Path(os.environ["LOG_OF_TESTS"])
    seen = {name: os.environ.get(name) for name in ("NKILIB_BACKEND", "NEURON_LOGICAL_NC_CONFIG", "NKI_ARTIFACTS_DIR")}
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, stage, seen["NKILIB_BACKEND"], seen["NEURON_LOGICAL_NC_CONFIG"]]) + "\n")
    if seen["NKI_ARTIFACTS_DIR"]:
        assert Path(seen["NKI_ARTIFACTS_DIR"]).is_dir()
    if "crashes" in name:
        print("what it said last")
        os._exit(9)
    if "hangs" in name:
        time.sleep(60)
    if stage in ("judge", "self-check"):
        status = "differs" if "differs" in name else "as expected"
        verdict = {"status": status, "text": "found", "details": {}}
        (Path(directory) / "verdict.json").write_text(json.dumps(verdict))


if __name__ == "__main__":
    main(*sys.argv[1:])
