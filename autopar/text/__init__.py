"""Text for people: tables, numbers, progress."""
