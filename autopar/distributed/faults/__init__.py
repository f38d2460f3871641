"""Fault tolerance and observation of jobs: heartbeats, checkpoints and merged timelines."""
