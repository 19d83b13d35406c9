# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Times on a device compared with the performance model."""
