"""What CONTRIBUTING.md shows, run; and the pages of the rooms, held to the files there are."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import autopar
from autopar.capture.split_rules.registry import RULES
from autopar.ir.device import KINDS
from autopar.ir.hardware import CHIPS
from autopar.planner import POLICIES
from autopar.view import save

ROOT = Path(__file__).parents[2]
PACKAGE = Path(autopar.__file__).parent
WRITTEN = (".py", ".c", ".h", ".html", ".css", ".js", ".json")
EXTENSIONS = ("A device kind", "A split rule", "A placement strategy", "A picture format")


def sections() -> dict[str, list[str]]:
    """The Python blocks of CONTRIBUTING.md by the heading they stand under."""
    parts = re.split(
        r"^#+ (.+)\n", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    blocks = {
        title: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        for title, text in zip(parts[1::2], parts[2::2])
    }
    return {title: found for title, found in blocks.items() if found}


@pytest.fixture
def registries() -> Iterator[None]:
    """What an extension registers is gone again after the test."""
    held = (CHIPS, KINDS, RULES, POLICIES, *save.WRITERS.values())
    before = [dict(registry) for registry in held]
    yield
    for registry, entries in zip(held, before):
        registry.clear()
        registry.update(entries)


def test_each_extension_is_shown() -> None:
    assert tuple(sections()) == EXTENSIONS


@pytest.mark.slow
@pytest.mark.parametrize("title", EXTENSIONS)
def test_the_code_shown_runs(
    title: str, registries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = title.lower().replace(" ", "_")
    (tmp_path / f"{module}.py").write_text("\n".join(sections()[title]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        # A module, for Dynamo looks names of the model's code up by it.
        importlib.import_module(module)
    finally:
        sys.modules.pop(module, None)


def test_kinds_of_devices_are_told_apart_by_their_records() -> None:
    compared = re.compile(r"""\.kind (==|!=|in|not in) \(?["'](cpu|cuda|xpu|emulated)["']""")
    assert compared.search('device.kind == "cpu"')
    files = PACKAGE.rglob("*.py")
    assert not [path.name for path in files if compared.search(path.read_text(encoding="utf-8"))]


def pages() -> dict[str, list[str]]:
    """The files that the pages of the rooms name in the first column of their tables, by page."""
    row = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
    return {
        page.stem: [
            name if page.stem == "ground" else f"{page.stem}/{name}" for name in row.findall(page.read_text())
        ]
        for page in (ROOT / "docs" / "rooms").glob("*.md")
    }


def test_every_file_has_its_line_on_the_page_of_its_room() -> None:
    named = [name for names in pages().values() for name in names]
    assert len(named) == len(set(named))
    paths = [path for path in PACKAGE.rglob("*.*") if path.suffix in WRITTEN]
    files = {path.relative_to(PACKAGE).as_posix().removesuffix(".py") for path in paths}
    packages = {file.removesuffix("__init__") for file in files if file.endswith("/__init__")}
    grounded = {"__init__", "errors"}
    assert not {file for file in files if not file.endswith("/__init__")} - set(named) - grounded
    assert not set(named) - files - packages


def test_links_between_documents_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, link)
        for page in documents
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert len(links) > 20
    assert not [(page.name, link) for page, link in links if not (page.parent / link).exists()]
