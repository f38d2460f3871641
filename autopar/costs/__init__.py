"""Costs of a graph on a machine: seconds of each task on each device, clusters of tasks, the machine at hand."""
