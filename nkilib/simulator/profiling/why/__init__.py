# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a kernel takes as long as it does: its critical path, and what stands out, in words. Modelled, not measured."""
