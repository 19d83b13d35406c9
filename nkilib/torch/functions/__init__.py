# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What :mod:`nkilib.torch` exports: a file or a folder for each public function or family of them.

One level below ``nkilib.torch``, since a module ``nkilib.torch.cross_entropy`` would be taken for the function of that
name: importing a module sets it as an attribute of its package. Nothing is exported here.
"""
