"""Real architectures with random weights, traps of our own, and the comparison both go through."""
