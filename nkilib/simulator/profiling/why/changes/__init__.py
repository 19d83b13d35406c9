# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The changes that a profile tries on the recorded instructions of a launch, to recommend those that save time.

Each module yields the candidates of some kinds of changes:

- ``cores``: work that all cores repeat; ``fusions``: instructions that one instruction can do;
- ``engines``: another engine; ``buffers``: more tiles; ``orders``: another order of instructions;
- ``transfers``: larger transfers, other queues and descriptors, loads that repeat others;
- ``sizes``: larger instructions, and more work in an iteration of a device loop.

- ``registry``: all of them;
- ``calls``: the text of calls in the source of the kernel, in which recommended calls are written.
"""
