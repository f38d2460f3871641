"""Lowering of a plan to a program: the steps of each lane, generated and proved."""
