"""SVG, its look, and free space for labels."""
