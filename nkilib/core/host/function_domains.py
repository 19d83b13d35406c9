# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where NKI documents activation functions. Numbers only, for kernels and for what is known of their results."""

from __future__ import annotations

from typing import Final

# ``log``, from its inverse to this.
LIMIT_OF_LOG: Final = 2.0**64
