# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the Scalar engine.

- ``activation``: ``activation``, ``activation_reduce``, ``activate2``;
- ``accumulators``: the accumulator registers that they reduce into.
"""
