# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operations among ranks: the functions of ``nki.collectives``. Their time is not modelled."""
