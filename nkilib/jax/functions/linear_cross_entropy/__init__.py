# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loss of an output layer from hidden states: the public function, its checks, its derivative, the launches."""
