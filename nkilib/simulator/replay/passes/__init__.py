"""What makes the steps of a plan few and their memory small, without another bit in what they leave."""
