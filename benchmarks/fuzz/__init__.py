"""Random calls of every function of nkilib.torch with default tilings, compared with float64: ``make fuzz``."""
