# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Code that all instructions share.

- ``definition``: the static properties of an instruction, and the handle that a call returns;
- ``checks``: the checks of operands and engines;
- ``indirection``: gather and scatter for views of ``NkiTensor.indirect``;
- ``operators``: the operators that instructions accept as ``op``.
"""
