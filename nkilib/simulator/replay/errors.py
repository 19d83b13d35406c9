# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a launch is not replayed. None of these reaches a user: the launch then runs as it always did."""

from __future__ import annotations


class Unplannable(Exception):
    """A launch of which no plan can be made, or none that is certain to leave the same bits."""


class PlanError(Exception):
    """A mistake of the planner: its plan does not do what the launch has done."""


class ReplayFailed(Exception):
    """A launch whose values are not those that its plan was made for, or that is refused; nothing was changed."""
