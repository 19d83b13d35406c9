# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules that every part of the library may import. They import nothing else of this library.

Statements about a kernel, made beside it:

- ``guarantee``: the guarantees of a kernel, such as precision and bounds on errors;
- ``statements``: the work of a kernel, the iterations of its loops, and that launches may be replayed.

Facts about this machine:

- ``installation``: packages named nkilib, how to install extras, and the Neuron devices that can be opened;
- ``lnc``: the number of cores of a launch.

For public functions and commands:

- ``deprecation``: warnings of names and arguments that will be removed;
- ``missing_names``: the error for a name that a module does not have, with the nearest name;
- ``quiet_exit``: the end of a command that is interrupted.
"""
