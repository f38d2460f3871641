"""Models over several hosts: autopar plans, `torch.distributed` runs, under `torchrun`."""
