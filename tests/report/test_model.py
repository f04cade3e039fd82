"""One document, drawn by three renderers."""

from __future__ import annotations

import re
from html import unescape

import pytest
from support import reports

from scaling.records.paths import RunFolder
from scaling.report import html, markdown, terminal
from scaling.report.documents.run import publish
from scaling.report.model import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Advice,
    Document,
    Figure,
    Finding,
    Line,
    Lines,
    Section,
    Table,
    lines,
)

HOSTILE = "<script>alert(1)</script> \x1b[31m|`*"


def drawn(*sections: Section, **rest: object) -> dict[str, str]:
    """The document as each renderer draws it."""
    document = Document(title="title", answer="answer", sections=sections, **rest)
    on_terminal = reports.printed(terminal.draw, document)
    return {"terminal": on_terminal, "page": html.draw(document), "markdown": markdown.draw(document)}


@pytest.mark.parametrize("renderer", [TERMINAL, PAGE, MARKDOWN], ids=["terminal", "page", "markdown"])
def test_a_section_appears_where_it_says_so(renderer):
    shown = drawn(Section(title="somewhere", blocks=(lines("kumquat"),), on=renderer))
    assert {name for name, said in shown.items() if "kumquat" in said} == {str(renderer.name).lower()}


def test_so_does_a_block_of_a_section():
    shown = drawn(Section(title="both", blocks=(lines("the long form", on=PAGE), lines("the short one"))))
    assert "the long form" in shown["page"]
    assert "the long form" not in shown["terminal"] + shown["markdown"]
    assert all("the short one" in said for said in shown.values())


def test_a_section_without_content_is_left_out_unless_its_title_says_enough():
    empty = (lines(""), Table(columns=(("a", ""),), rows=()), Figure())
    shown = drawn(
        Section(title="nothing here", blocks=empty), Section(title="problems: none", title_alone=True)
    )
    assert all("othing here" not in said for said in shown.values())
    assert all("roblems: none" in said for said in shown.values())


def test_a_table_has_the_same_cells_everywhere():
    table = Table(columns=(("ranks", ""), ("step", "ms")), rows=(("2", "66.1 ±1.2"),), note="what it means")
    for said in drawn(Section(title="table", blocks=(table,))).values():
        words = " ".join(unescape(said).replace("\N{NO-BREAK SPACE}", " ").split())
        assert "66.1 ±1.2" in words
        assert "hat it means" in words


def test_names_stand_beside_their_text():
    block = Lines(
        items=(Line(name="probe", text="1 %"), Line(name="of it", text="2 %", level=1)), look="facts"
    )
    shown = drawn(Section(title="facts", blocks=(block,)))
    assert "  probe              1 %\n    of it            2 %\n" in shown["terminal"]
    assert "- probe: 1 %\n  - of it: 2 %" in shown["markdown"]
    assert "<dt>probe</dt><dd>1\N{NO-BREAK SPACE}%</dd>" in shown["page"]


def test_a_link_leads_to_its_section():
    line = Line(text="see there, please", link=("there", "how sure"))
    shown = drawn(Section(title="note", blocks=(Lines(items=(line,), look="note"),)))
    assert 'see <a href="#how-sure">there</a>, please' in shown["page"]
    assert "see there, please" in shown["terminal"]


def test_text_from_anywhere_is_harmless_in_every_block_and_renderer():
    said = (HOSTILE,)
    blocks = (
        Table(columns=((HOSTILE, HOSTILE),), rows=(said,), title=HOSTILE, label=HOSTILE, note=HOSTILE),
        *(
            lines(HOSTILE, look=look)
            for look in ("items", "prose", "warnings", "facts", "conditions", "note")
        ),
        Finding(
            title=HOSTILE,
            confidence=HOSTILE,
            evidence=said,
            advice=(Advice(overrides=HOSTILE, code=HOSTILE, gain=HOSTILE),),
        ),
    )
    about = {"about": HOSTILE, "badge": HOSTILE, "badge_means": HOSTILE, "when": HOSTILE}
    shown = drawn(
        Section(title=HOSTILE, blocks=blocks),
        **about,
        sureness=(Line(text=HOSTILE, link=(HOSTILE, HOSTILE)),),
        closing=(Line(name="path", text=HOSTILE),),
    )
    assert [name for name, one in shown.items() if "\x1b" in one] == []
    assert "<script>alert" not in shown["page"]
    assert shown["page"].count("</script>") == 3
    unescaped = re.sub(r"\\.", "", shown["markdown"])
    assert "<script>" not in re.sub(r"`[^`]*`", "", unescaped)


def test_a_runs_files_are_the_same_document(sample, tmp_path):
    folder = RunFolder(tmp_path)
    steps = (sample.timeline(2),)
    publish(folder, sample.good(), sample.plan(), steps, sample.histories(), sample.machines())
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "report.md",
        "report.txt",
        "timeline.json",
    }
    page = reports.page(sample.good(), sample.plan(), steps, sample.histories(), sample.machines())
    assert folder.report_html.read_text(encoding="utf-8") == page
    assert folder.report_md.read_text(encoding="utf-8") == reports.markdown(sample.good(), sample.plan())
    printed = folder.report_txt.read_text(encoding="utf-8").splitlines()
    assert printed[-1] == f"# report  {folder.report_html}"
