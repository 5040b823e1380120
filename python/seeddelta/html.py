"""Tables of plain text in HTML, of which the `_repr_html_` of our objects is made. The notebook chooses the colors."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_LEFT, _RIGHT = "text-align: left", "text-align: right; font-variant-numeric: tabular-nums"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """An HTML table of plain text; the columns after the first `text_columns` are numbers, to the right."""

    def row(cells: Sequence[str], tag: str) -> str:
        styles = [_LEFT if at < text_columns else _RIGHT for at in range(len(cells))]
        inside = (f'<{tag} style="{style}">{escape(cell)}</{tag}>' for cell, style in zip(cells, styles, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    head = f"<thead>{row(headings, 'th')}</thead>" if headings else ""
    return f"<table>{head}<tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody></table>"


def line(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def folded(title: str, inside: str) -> str:
    """HTML that a click on the title shows."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"
