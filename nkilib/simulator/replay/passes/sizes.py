# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The size, in elements, from which the passes consider a tile: moving fewer takes no longer than any step does."""

from __future__ import annotations

SMALLEST = 4096
