"""Silent wrong answers of compilers from public reports, and what eager, `torch.compile` and autopar answer."""
