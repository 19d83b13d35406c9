"""What the cross-entropy kernels took, and accepted, before their plain and extended forms became one."""
