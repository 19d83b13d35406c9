# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a kernel takes as long as it does: its critical path, and findings in sentences. Modelled, not measured."""
