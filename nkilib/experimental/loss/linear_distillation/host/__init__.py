"""Host code of distillation from hidden states: tilings, sizes and what is stated of the kernels."""
