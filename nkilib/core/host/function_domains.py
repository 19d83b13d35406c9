# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The documented domains of NKI's activation functions. Numbers only, for kernels and for error bounds."""

from __future__ import annotations

from typing import Final

# The domain of ``log`` ends here, and begins at the inverse.
LIMIT_OF_LOG: Final = 2.0**64
