"""Measurements on disk: for whom they are, and that a file is whole or none."""

from __future__ import annotations

import os
import platform

import pytest

from autopar.system import cache


@pytest.fixture(autouse=True)
def own(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("module", "name"),
    [(platform, "node"), (platform, "machine"), (cache, "processor"), (os, "cpu_count")],
)
def test_another_machine_has_another_file(monkeypatch, module, name):
    here = cache.file_for("machine", ["2.13", "cuda:0"])
    assert here == cache.file_for("machine", ["2.13", "cuda:0"])
    monkeypatch.setattr(module, name, lambda: "another")
    assert cache.file_for("machine", ["2.13", "cuda:0"]) != here


def test_so_has_another_kind_or_whatever_else_decides():
    files = {
        cache.file_for(kind, about)
        for kind in ("machine", "tasks")
        for about in ([], ["2.13"], ["2.14"], ["2.13", "cuda:0"], ["2.13cuda:0"])
    }
    assert len(files) == 10


def test_what_is_stored_is_loaded_and_cleared(own):
    path, entries = cache.file_for("machine", []), {"memcpy": {"bytes_per_s": 1e9}}
    assert cache.load(path) == {}
    cache.store(path, entries)
    assert cache.load(path) == entries
    assert [file.name for file in own.iterdir()] == [path.name]
    cache.clear()
    assert cache.load(path) == {} and not list(own.iterdir())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "other", "entries": {}}', '{"format": "autopar measurements 1"}',
             '{"format": "autopar measurements 1", "entries": []}', "\xff"],
)  # fmt: skip
def test_what_cannot_be_used_is_said_and_taken_again(own, text, caplog):
    path = own / "machine-0.json"
    path.write_text(text, encoding="latin-1")
    assert cache.load(path) == {}
    assert str(path) in caplog.text


def test_a_write_that_fails_leaves_what_was_there(own, caplog):
    path = cache.file_for("machine", [])
    cache.store(path, {"a": {"x": 1.0}})
    with pytest.raises(TypeError):
        cache.store(path, {"a": {"x": 2.0}, "b": object()})
    assert cache.load(path) == {"a": {"x": 1.0}}
    assert [file.name for file in own.iterdir()] == [path.name], "no part of a file is left"


def test_a_folder_that_cannot_be_written_costs_a_line(own, monkeypatch, caplog):
    (own / "file").write_text("")
    monkeypatch.setenv("AUTOPAR_CACHE", str(own / "file"))
    cache.store(cache.file_for("machine", []), {})
    assert "AUTOPAR_CACHE" in caplog.text
    assert "not kept" in cache.note() and "AUTOPAR_CACHE" in cache.note()
