"""A stand-in for an accelerator, as asynchronous and as unforgiving as a GPU: `docs/strict.md`.

    from strict import load
    load()  # torch.accelerator now finds strict:0 and strict:1, and torch.strict is their module

It changes `torch.accelerator` for the whole process, for good.
"""

from .build import CompilerError, NoCompilerError, built
from .module import NAME, load

__all__ = ["NAME", "CompilerError", "NoCompilerError", "built", "load"]
