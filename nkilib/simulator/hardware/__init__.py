# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The simulated hardware: its generations, their limits, and the options in force.

- ``generations``: the limits, sizes and times of each generation;
- ``current``: the generation and scope of the running core, and ``nl.tile_size``;
- ``options``: the options in force, and the reaction to a failed check.
"""
