# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A core that runs a kernel, the steps by which it issues instructions, and the observers that check and record them.

- ``core``: the state of a core and of its launch;
- ``left_out``: the values that a launch with ``skip_arithmetic`` does not compute;
- ``issue``: the steps of every instruction;
- ``loops``: loops that run on the device, their repeated iterations and stated iteration counts;
- ``synchronisation``: the barrier of cores, and the collectives of ranks;
- ``observer``: the interface of observers;
- ``records``: lifetimes of tensors, and counts of instructions and bytes;
- ``psum_groups``, ``races``, ``partial_writes``, ``overlapping_copies``: checks.
"""
