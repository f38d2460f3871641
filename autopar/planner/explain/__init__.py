"""What-if analysis: the one change of hardware or cap that would shorten a plan most."""
