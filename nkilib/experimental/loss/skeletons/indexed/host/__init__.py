# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of losses that read the element at a target: never traced."""
