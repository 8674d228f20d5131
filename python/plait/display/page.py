"""Building blocks of HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable


def escaped(text: str) -> str:
    """Escape text for HTML; invalid Unicode is replaced."""
    return html.escape(text.encode(errors="replace").decode())


def title(text: str) -> str:
    """Return a heading of one line, without the brackets of a repr()."""
    return f"<b>{escaped(text.strip('<>'))}</b>"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of texts."""

    def line(tag: str, items: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escaped(item)}</{tag}>" for item in items) + "</tr>"

    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"


def details(summary: str, body: str) -> str:
    """Return a section that a click expands."""
    return f"<details><summary>{escaped(summary)}</summary>{body}</details>"
