"""The stages of one call: capture → cost → split → plan → lower → prove → bind, and the comparison with eager."""
