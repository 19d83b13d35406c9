"""What is simulated: the hardware generations, their limits, and the options in force."""
