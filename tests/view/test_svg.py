"""Names in pictures: text of the picture, never markup of it."""

import html.parser
import xml.etree.ElementTree as ET

import view_plans
from hypothesis import given
from hypothesis import strategies as st

from autopar.view import draw
from autopar.view.drawing.free_space import Label
from autopar.view.drawing.svg import Svg, escape
from autopar.view.pages import timeline_page

HOSTILE = """a" onload="b' onclick='c <i>&amp;]]> \" d\\"""
XML = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"))


@given(XML)
def test_what_is_written_is_what_a_reader_finds(text):
    svg = Svg(10.0, 10.0, text)
    svg.add("rect", data_name=text)
    with svg.group(text, data_name=text):
        svg.label(Label(1, 2, text, ground="#FFFFFF"))
        svg.quantity(1, 2, text)
    root = ET.fromstring(str(svg))
    named = [element for element in root.iter() if "data-name" in element.attrib]
    assert [element.attrib for element in named] == [{"data-name": text}] * 2
    # A quantity is a number and its unit, without the space between them.
    allowed = {"", text, text.replace(" ", "", 1), "\n"}
    assert {"".join(e.itertext()) for e in root.iter() if e.tag.endswith(("text", "title"))} <= allowed


@given(st.text())
def test_any_string_can_stand_in_an_attribute(text):
    assert not set(escape(text)) & set('<>"')
    ET.fromstring(f'<a b="{escape(text)}">{escape(text)}</a>')


class Tags(html.parser.HTMLParser):
    """The tags of a page with the names of their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data):
        self.data.append(data)


def named(name):
    """A plan on two devices in which everything that can have a name has this one."""
    on = view_plans.machine(1)
    jobs = [
        view_plans.Job(name, "emulated:0/0", 1e-3, ("x",), module=name, code=name, target=name),
        view_plans.Job(f"{name}2", "cpu/0", 1e-3, (name,), module=name, code=name),
    ]
    return view_plans.build(name, jobs, on, outputs=(f"{name}2",))


def test_names_add_no_tag_and_no_attribute_to_a_page(tmp_path):
    pages = []
    for name in (HOSTILE, "z" * len(HOSTILE)):
        plan = named(name)
        draw(plan, tmp_path / "a.html")
        (tmp_path / "b.html").write_text(timeline_page(view_plans.measured(plan)))
        pages.append([Tags((tmp_path / f).read_text()) for f in ("a.html", "b.html")])
        assert all(name in "".join(page.data) for page in pages[-1])
    for hostile, plain in zip(*pages):
        assert set(hostile.tags) == set(plain.tags)


def test_names_add_nothing_to_a_picture(tmp_path):
    shapes = []
    for name in (HOSTILE, "z" * len(HOSTILE)):
        draw(named(name), tmp_path / "a.svg")
        shapes.append({(e.tag, *e.attrib) for e in ET.parse(tmp_path / "a.svg").iter()})
    assert shapes[0] == shapes[1] and len(shapes[0]) > 10
