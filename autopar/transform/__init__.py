"""Graph → graph: the batch split, sums and buckets, forward and backward divided, views."""
