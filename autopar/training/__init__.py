"""Two doors to training: a compiled model in the user's own loop, and the whole step as one graph."""
