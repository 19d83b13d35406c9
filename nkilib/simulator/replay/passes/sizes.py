# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""From how many elements on the passes look at a tile: moving fewer takes no longer than a step does anyway."""

from __future__ import annotations

SMALLEST = 4096
