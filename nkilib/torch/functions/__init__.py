# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions and modules that :mod:`nkilib.torch` exports: a file or a folder for each of them, or for a family.

They stand one level below ``nkilib.torch``, because a module ``nkilib.torch.cross_entropy`` would shadow the function
of that name: importing a module sets it as an attribute of its package. Nothing is exported here.
"""
