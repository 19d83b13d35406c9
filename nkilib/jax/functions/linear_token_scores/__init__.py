# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores of tokens from hidden states: the public function and its return value."""
