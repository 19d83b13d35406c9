# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled time of a launch for readers: tables, traces and pictures."""
