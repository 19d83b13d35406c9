# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What makes the steps of a plan few and their memory small, without another bit in what they leave."""
