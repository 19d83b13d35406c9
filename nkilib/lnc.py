# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The alias of :mod:`nkilib.base.lnc` that earlier releases used."""

from nkilib.base.lnc import *  # noqa: F403
from nkilib.base.lnc import __all__ as __all__
