"""Backends of lanes: CPU threads, accelerator streams, the declared clock."""
