"""Graph × machine → costed graph: seconds of each task on each device, clusters of tasks, the machine at hand."""
