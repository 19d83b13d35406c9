# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a launch is modelled to take, for people: tables, traces, pictures."""
