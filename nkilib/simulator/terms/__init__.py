# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Words of NKI without state: types, enumerations, memory regions, layouts, errors."""
