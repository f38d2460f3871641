"""Training, in two ways: a compiled model in the user's own loop, and a whole step as one graph."""
