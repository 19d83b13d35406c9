# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A module whose import raises an ImportError if the imported nkilib is a mixture of two packages of that name."""

from nkilib.base.installation import refuse_mixture

refuse_mixture()
