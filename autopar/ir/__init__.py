"""The nouns: graph, machine, costed graph, plan, program, timeline. Plain data, checked and saved; no torch."""
