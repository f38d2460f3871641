"""Contiguous cuts of a graph into parts for devices."""
