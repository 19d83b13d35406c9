# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The parts of ``tools.mutate``: the possible changes, copies of the checkout, and verdicts of the tests."""
