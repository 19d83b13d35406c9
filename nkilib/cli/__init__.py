# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The command line ``python -m nkilib``: commands for kernels and for the machine that they run on.

Commands, which ``main`` combines:

- ``doctor``: which NKI was chosen, and what is installed;
- ``profile`` and ``tune``: the modelled time of a kernel, and of its tilings;
- ``verify``: checks of a device.

Code that several commands use:

- ``arguments``: the parser, names of types, the arguments of a launch, checks of output files, and folded lines;
- ``named_kernel``: a kernel of a user's file, with its arguments;
- ``modelled``: the families of this library's kernels.

Modules that ``python -m`` runs, which print tables of the documentation:

- ``guarantees``: the guarantees of the public kernels, and functions that format Markdown;
- ``losses``: the registry of losses.
"""
