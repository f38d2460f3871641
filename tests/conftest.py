"""`--accelerator`: what the tests marked `gpu` run on. Loading the stand-in changes `torch.accelerator` for the whole
process, so a run without the option never does."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

# Before torch is loaded, here and in the processes of pytest-xdist: threads that spin take cores from other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "AUTOPAR_CACHE" not in os.environ:
    # What other runs measured here changes plans. The processes of pytest-xdist inherit the folder of the first.
    os.environ["AUTOPAR_CACHE"] = tempfile.mkdtemp(prefix="autopar-tests-")
    atexit.register(shutil.rmtree, os.environ["AUTOPAR_CACHE"], ignore_errors=True)
# What calls inductor's kernels, not these themselves: compiling it takes longest.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")

# Before files are collected: rewriting their assertions and tracing graphs make so many objects that collections of
# garbage by Python's own thresholds take a fifth of the collection of tests, and some per cent of their runs.
if gc.isenabled():
    gc.set_threshold(100_000)

import pytest
import strict
import torch


class _NoHandlers(list):
    """Handlers that stay empty: those of pytest make torch write every graph that it traces to its log."""

    def append(self, handler: logging.Handler) -> None:
        pass


logging.getLogger("torch.__trace").handlers = _NoHandlers()

HOW = "on the stand-in for one they run by: python -m pytest -m gpu --accelerator strict"

GPU = "gpu and not release"
"""What `-m gpu` runs."""

LONG = ("test_kernel_libraries", "test_faults", "test_kernel_values", "test_language", "test_zoo")
"""Files that take longest, of which none is to be the last that one process of pytest-xdist has left."""

missing = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accelerator", metavar="NAME",
        help="run tests marked gpu on this: strict is the stand-in of docs/strict.md, built at first use; "
        "otherwise the type of an accelerator that is here (cuda, xpu, …)",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # By the number of tests, short files would come first.
    config.option.loadscopereorder = False
    if config.option.markexpr == "gpu":
        # It replaces the default, which leaves these out.
        config.option.markexpr = GPU
    wanted = config.getoption("accelerator")
    if wanted == strict.NAME:
        try:
            strict.load()
        except strict.CompilerError as error:
            if os.environ.get("CI") or not isinstance(error, strict.NoCompilerError):
                raise pytest.UsageError(str(error)) from error
            config.stash[missing] = str(error)
        return
    here = _kind()
    if wanted and wanted != here:
        raise pytest.UsageError(f"--accelerator {wanted}: there is {here or 'no accelerator'} here; {HOW}")
    if not here:
        config.stash[missing] = f"there is no accelerator here; {HOW}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that say nothing of the mark that alone is asked for: to load them all takes half a minute."""
    if config.option.markexpr != GPU or collection_path.suffix != ".py":
        return None
    return "gpu" not in collection_path.read_text() or None


def pytest_report_header(config: pytest.Config) -> str | None:
    if _kind() != strict.NAME:
        return None
    return f"accelerator: strict, {torch.accelerator.device_count()} devices, {_settings()}"


def _settings() -> str:
    """The environment of this run, as one types it."""
    return " ".join(
        f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("STRICT_")
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reason = config.stash.get(missing, None)
    for item in items:
        if any(map(item.get_closest_marker, ("zoo", "grid", "release"))):
            item.add_marker("slow")
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now stays: no collection of garbage need go through half a million objects of it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed and _kind() == strict.NAME and item.get_closest_marker("gpu"):
        mark = "'gpu and release'" if item.get_closest_marker("release") else "gpu"
        again = f"{_settings()} python -m pytest -m {mark} --accelerator strict '{item.nodeid}'"
        report.sections.append(("with the same delays", again))
    return report


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for an operator: threads of one wait by spinning, and round sums in another order than a lane's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def strict_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """The stand-in as the environment sets it, and delays that are the test's own: alone or among others it has the
    same. What a test left undone, and an error in it, is the test's."""
    if _kind() != strict.NAME or not request.node.get_closest_marker("gpu"):
        yield
        return
    module = torch.get_device_module(strict.NAME)
    seed = int(os.environ["STRICT_SEED"]) ^ zlib.crc32(request.node.nodeid.encode())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module.set_delay(int(os.environ["STRICT_DELAY_US"]), float(os.environ["STRICT_DELAY_SHARE"]))
    module.set_seed(seed)
    yield
    torch.set_num_threads(threads)
    module.set_poison(True)
    module.set_serial(False)
    module.set_sync_debug_mode("default")
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)


def _kind() -> str:
    """The type of the accelerator here, empty for none."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    return kind.type if kind else ""
