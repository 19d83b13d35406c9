# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The path by which earlier releases named :mod:`nkilib.base.lnc`."""

from nkilib.base.lnc import *  # noqa: F403
from nkilib.base.lnc import __all__ as __all__
