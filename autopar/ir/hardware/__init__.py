"""Chips, buses, and machines that are declared or stood in for."""
