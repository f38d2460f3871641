"""Exact scheduling of small graphs, with a proof, by constraint programming (OR-tools CP-SAT).

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23, 2018),
transfers as intervals on their wires, and the heads, tails and loads of `bounds` and `windows`.
"""
