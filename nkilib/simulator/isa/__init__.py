# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rules that all instructions share.

- ``definition``: the static properties of an instruction, and the handle of a call;
- ``checks``: the checks of operands and engines;
- ``indirection``: the gather and scatter of indirect views;
- ``operators``: the operators of ``op``.
"""
