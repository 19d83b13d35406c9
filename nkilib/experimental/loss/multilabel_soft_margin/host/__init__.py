# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of the multi-label soft margin loss, which is never traced."""
