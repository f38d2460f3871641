"""Plan → program: the steps of each lane, written and proved."""
