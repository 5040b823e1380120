"""Tables for notebooks: what `_repr_html_` of our objects gives. Colours are left to the notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module

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
    return f"<p>{escape(text)}</p>"


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


class Shown:
    """An object that notebooks show as what report/html.py makes of it; that page knows all kinds, none knows it."""

    def _repr_html_(self) -> str:
        return str(import_module("seeddelta.report.html").html_of(self))
