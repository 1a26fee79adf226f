"""Writes a self-contained page of tables and plots that opens offline."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from latebind.bench.chart import Plot
from latebind.bench.tables import written

Rows = Sequence[Mapping[str, object]]

STYLE = """
body { font-family: system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .3rem .8rem; text-align: left }
th { border-bottom: 2px solid #222 } td { border-bottom: 1px solid #ccc } p { line-height: 1.5 }
.plot { margin: 2rem 0 } .wide { overflow-x: auto }
"""


def write_plots(file: Path, title: str, text: str, tables: Sequence[Rows], figures: Sequence[Plot]) -> None:
    """Write a page of tables, each of rows with equal keys, and figures; plotly's script is inside it."""
    import plotly.io as pio  # noqa: PLC0415  (plotly is optional)
    from plotly.offline import get_plotlyjs  # noqa: PLC0415

    plots = "".join(
        f'<div class="plot">{pio.to_html(figure, full_html=False, include_plotlyjs=False)}</div>' for figure in figures
    )
    table = "".join(_table(rows) for rows in tables if rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body><h1>{escape(title)}</h1>"
        f'<p>{text}</p><div class="wide">{table}</div>{plots}</body></html>'
    )


def _table(rows: Rows) -> str:
    head = "".join(f"<th>{escape(key)}</th>" for key in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(written(v))}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
