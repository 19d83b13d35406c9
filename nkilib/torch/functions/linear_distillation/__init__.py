# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_distillation_loss``: a student's divergence from a teacher, from the hidden states of both models."""
