# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The errors for launches that have a key and are not replayed.

These errors never reach a user: the launch runs instruction by instruction instead.
"""

from __future__ import annotations


class Unplannable(Exception):
    """No plan of the launch is certain to give bitwise identical results."""


class PlanError(Exception):
    """The planner has a fault: its plan gives other results, or leaves other arguments, than the launch."""


class ReplayFailed(Exception):
    """A plan cannot run a launch, because it is not valid for its values or a step raises an error.

    The arguments of the launch are unchanged.
    """
