# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the engines' sequencers: registers, barriers, exchanges."""
