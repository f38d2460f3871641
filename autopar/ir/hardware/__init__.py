"""Chips, buses, and declared or emulated machines."""
