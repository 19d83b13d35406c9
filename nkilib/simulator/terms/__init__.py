# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Stateless terms of NKI: types, enumerations, memory regions, layouts and errors."""
