"""SVG shapes, their design, and free space for labels."""
