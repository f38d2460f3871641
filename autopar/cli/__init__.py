"""Commands of `python -m autopar`."""
