# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of the skeleton: never traced."""
