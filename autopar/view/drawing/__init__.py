"""SVG and PNG, fonts and colours."""
