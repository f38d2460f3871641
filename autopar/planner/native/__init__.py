"""The local search in C: sources, and the shared library made of them."""
