"""Rewrites of graphs: the batch split, sums and buckets, the division into forward and backward, views."""
