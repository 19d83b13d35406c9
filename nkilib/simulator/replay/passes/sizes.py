# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The smallest tile that the passes consider, in elements: moving fewer takes no longer than any step does."""

from __future__ import annotations

SMALLEST = 4096
