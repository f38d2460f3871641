"""The strict accelerator is compiled once for all that ask, and says why where it cannot be."""

import platform
from concurrent.futures import ThreadPoolExecutor

import pytest
import strict

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="the device needs Linux")

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo {version}; exit; fi
echo "$@" >> {log}
{fails}
while [ "$1" != -o ]; do shift; done
sleep 0.05
echo made > "$2"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Make a compiler that keeps a list of what it was asked for."""
    log, script = tmp_path / "log", tmp_path / "compiler"
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(script))

    def install(version: str = "1", fails: str = ""):
        script.write_text(COMPILER.format(version=version, log=log, fails=fails))
        script.chmod(0o755)
        return log

    return install


def test_compiled_once_for_all_that_ask(compiler):
    log = compiler()
    with ThreadPoolExecutor(4) as pool:
        paths = {future.result() for future in [pool.submit(strict.built) for _ in range(4)]}
    (path,) = paths
    assert path.read_text() == "made\n"
    asked = log.read_text().splitlines()
    assert len(asked) == 3, "two halves, and the library"
    assert not [left for left in path.parent.iterdir() if left.is_dir()]
    strict.built()
    assert log.read_text().splitlines() == asked


def test_another_compiler_makes_another_library(compiler):
    compiler("1")
    first = strict.built()
    compiler("2")
    assert strict.built() != first


def test_nothing_is_kept_of_what_does_not_compile(compiler):
    compiler(fails="echo 'x.cpp:1:2: error: this is not C++' >&2; exit 1")
    with pytest.raises(strict.CompilerError, match=r"x.cpp:1:2: error: this is not C\+\+; CXX names another"):
        strict.built()
    compiler()
    assert strict.built().exists()


def test_without_a_compiler(compiler, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(strict.NoCompilerError, match=r"'no-such-compiler' is not found; install one"):
        strict.built()
