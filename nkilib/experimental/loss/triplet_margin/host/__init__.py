# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of the triplet margin loss, which is never traced."""
