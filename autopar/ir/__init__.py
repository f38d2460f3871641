"""Data types shared by all rooms: graph, machine, costed graph, plan, program, timeline. Pure data without
torch; checked, and saved to files."""
