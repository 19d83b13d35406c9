# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of :mod:`nkilib.torch.trl` beside TRL's own trainers."""

import pytest

pytest.importorskip("trl", minversion="1.16", reason="TRL wants Python 3.11 or later")
