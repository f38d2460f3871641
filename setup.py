"""The part of the package that is in C; all else is in pyproject.toml."""

from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(Path("autopar/planner/native").glob("*.[ch]"))
# `autopar.planner.native` compares them with those it finds beside itself, which may have changed since.
BUILT_FROM = sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()

setup(
    ext_modules=[
        Extension(
            "autopar.planner.native._search",
            sources=[str(source) for source in SOURCES if source.suffix == ".c"],
            depends=[str(source) for source in SOURCES],
            define_macros=[("BUILT_FROM", f'"{BUILT_FROM}"')],
            # No contraction: the sums are those of the simulator, to the bit, on every processor.
            extra_compile_args=["-O2", "-ffp-contract=off", "-fvisibility=hidden"],
            libraries=["m"],
            # It uses nothing of Python's, whose headers need not be there, so that one file serves every version.
            py_limited_api=True,
            # Without a compiler the package works, and says what it lacks.
            optional=True,
        )
    ]
)
