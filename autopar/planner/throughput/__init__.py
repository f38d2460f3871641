"""Throughput of successive calls: the placement with the smallest period."""
