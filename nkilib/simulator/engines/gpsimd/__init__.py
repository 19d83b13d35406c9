# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the GpSimd engine, and instructions whose numbers it generates."""
