# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Raise an ImportError if the imported nkilib mixes the files of two packages of that name. Importing this module runs
the check.
"""

from nkilib.base.installation import refuse_mixture

refuse_mixture()
