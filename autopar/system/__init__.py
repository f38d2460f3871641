"""This machine and its files: cores, caches, JSON, versions of torch, pauses of the garbage collector."""
