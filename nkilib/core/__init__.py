# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Helpers that NKI code may call."""

from pkgutil import extend_path

# The package that the Neuron compiler bundles has an nkilib.core too: its modules stay importable
# (see nkilib/__init__.py).
__path__ = extend_path(__path__, __name__)
