"""Pipelines of stages: units of a model, cut, timed, run by `torch.distributed.pipelining`."""
