"""Plans under the model of the dnn-partitioning paper, stricter than this package's own machines.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph
operators", NeurIPS 2020. Latency: there are cores enough; an accelerator runs its part as one call, which begins when
all that the part reads has been computed, fetches it from the host, computes, sends what others read back to the host,
and only then has given its results. Throughput: a core is as busy as what it computes, an accelerator as what it
fetches, computes and sends; the largest load is the period. In both, an output is sent once and fetched once by each
accelerator that reads it, an accelerator holds the bytes of its nodes, and nodes of one class share a device.
"""

from .check import named, strict_latency, strict_load
from .plan import OBJECTIVES

__all__ = ["OBJECTIVES", "named", "strict_latency", "strict_load"]
