"""Graph × machine → costed graph: what each task takes on each device, what runs as one, and what machine this is."""
