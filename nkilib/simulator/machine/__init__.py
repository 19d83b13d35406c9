# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A running core, and the barriers at which cores synchronise."""
