"""The planner's benchmarks: plans beside rivals and optima, each judged by `verify`."""
