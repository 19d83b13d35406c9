# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Linear cross-entropy of a vocabulary that is spread over processes."""
