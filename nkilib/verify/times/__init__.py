# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Times on a device compared with the performance model.

- ``figures``: the timed launches, and the comparison of their times;
- ``clocks``: ways to measure the time of a launch;
- ``kernels``: kernels that only these launches run.
"""
