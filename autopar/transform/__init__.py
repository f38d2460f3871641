"""Graph → graph: the batch cut, its rows followed, sums and buckets, phases, views."""
