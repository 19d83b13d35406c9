# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of :mod:`nkilib.torch.trl` beside TRL's own trainers; they import ``trl`` when they run, not when they are
collected.
"""

from importlib.metadata import PackageNotFoundError, version

import pytest


def _is_here() -> bool:
    try:
        return tuple(int(part) for part in version("trl").split(".")[:2]) >= (1, 16)
    except PackageNotFoundError:
        return False


if not _is_here():
    pytest.skip("TRL wants Python 3.11 or later", allow_module_level=True)
