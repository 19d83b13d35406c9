# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What is simulated: the hardware generations, their limits, and the options in force."""
