# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""All tests of this folder have the same options of the simulator."""

from tests.experimental.loss.pinned_options import pinned_options

__all__ = ["pinned_options"]
