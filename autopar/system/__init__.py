"""This machine and its files: cores, caches, JSON, torch versions, garbage collector pauses."""
