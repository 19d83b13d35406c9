# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What ranks do together: the operations of ``nki.collectives``. Time is not modelled for them."""
