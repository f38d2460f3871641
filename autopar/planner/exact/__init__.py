"""The shortest schedule there is, with a proof, by constraint programming (OR-tools CP-SAT): small graphs.

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23,
2018), transfers as intervals of their wires, and what `bounds` and `windows` know of heads, tails and loads.
"""
