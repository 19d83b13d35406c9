"""Host code of the skeleton: never traced."""
