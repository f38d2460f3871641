"""Rewrites of graphs: batch split, sums and buckets, division into forward and backward, views."""
