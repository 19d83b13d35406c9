# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the engines' sequencers: registers, barriers, exchanges.

- ``registers``: moves, loads and stores of registers and scalars;
- ``cores``: the barrier of the two cores and their exchanges.
"""
