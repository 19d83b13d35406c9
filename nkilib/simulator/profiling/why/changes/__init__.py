# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The changes that a profile tries on the recorded instructions of a launch, to recommend those that save time.

Each module yields *candidates*, which are changes that may save time, of some kinds:

- ``cores``: division of work that all cores repeat;
- ``fusions``: one instruction instead of several;
- ``engines``: another engine; ``buffers``: more tiles; ``orders``: another order of instructions;
- ``transfers``: larger transfers, other queues and descriptors, loads that repeat others;
- ``sizes``: larger instructions, and more work in an iteration of a device loop.

Besides there are:

- ``registry``: the list of all changes;
- ``calls``: the text of calls in the source of the kernel, and of calls to write instead.
"""
