# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The releases of JAX that this package supports. Importing this module raises an ImportError for other releases."""

from __future__ import annotations

from typing import Final

from nkilib.base.installation import extra_remedy
from nkilib.core.host.requirement import Requirement

# The first of those that Neuron SDK 2.32 and 2.33 name (release-notes/components/jax: 0.7.0 to 0.10.0), and the first
# with the callbacks and types that are used here.
REQUIREMENT: Final = Requirement("nkilib.jax", "jax", (0, 7), f"{extra_remedy('jax')}, on Python 3.11 or later")

REQUIREMENT.check()
