# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of :mod:`nkilib.torch.transformers`; they import `transformers` when they run, not when they are collected."""

from importlib.util import find_spec

import pytest

if find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)
