"""Lane backends: CPU threads, accelerator streams, the declared clock."""
