"""Pieces of HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable


def escaped(text: str) -> str:
    """Text that means itself in HTML; what is not Unicode is replaced."""
    return html.escape(text.encode(errors="replace").decode())


def title(text: str) -> str:
    """A heading of one line; the brackets of a repr() are dropped."""
    return f"<b>{escaped(text.strip('<>'))}</b>"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of texts."""

    def line(tag: str, items: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escaped(item)}</{tag}>" for item in items) + "</tr>"

    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"


def details(summary: str, body: str) -> str:
    """Something that opens when it is clicked on."""
    return f"<details><summary>{escaped(summary)}</summary>{body}</details>"
