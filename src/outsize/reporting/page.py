"""Building blocks of HTML pages: style, cards and tables.

Figures are inline SVG, so a page is one self-contained file.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from string import Template


def page(title: str, body: str) -> str:
    """A complete HTML page; `title` is text, `body` is HTML."""
    return _PAGE.substitute(title=html.escape(title), body=body)


def card(name: str, value: str) -> str:
    """A card: a value with its name below."""
    return f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'


def facts_table(facts: Mapping[str, str]) -> str:
    """A table of names and values, one row each."""
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a head; all values are text."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title · Outsize</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f8fafc;
         max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 0 0 .6rem; }
  .cards, .grid { display: grid; gap: 1rem; margin-bottom: 1rem; }
  .cards { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
  .grid { grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
  .card, section { background: #fff; border: 1px solid #e2e8f0; border-radius: 8px;
                   padding: 1rem; overflow-x: auto; }
  section { background: linear-gradient(to left, #fff 50%, #fff0) right / 3rem 100% no-repeat local,
    linear-gradient(to left, #94a3b880, #94a3b800) right / .7rem 100% no-repeat scroll, #fff; }
  .card b { display: block; font-size: 1.25rem; white-space: nowrap; }
  .card span { color: #64748b; font-size: .85rem; }
  section svg { display: block; width: 100%; height: auto; max-width: 760px; margin: 0 auto; }
  .plot svg text { font-size: 11px; fill: #475569; }
  .legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; justify-content: center;
            font-size: .8rem; color: #475569; }
  .legend i { display: inline-block; width: 20px; margin-right: .4rem; vertical-align: middle;
              border-top: 3px solid; } .legend .dashed { border-top-style: dashed; }
  .bars th { width: 1%; white-space: nowrap; } .bars td:last-child { width: 1%; padding: 0;
             white-space: nowrap; text-align: right; }
  .bars td, .bars th { border: 0; padding: .05rem .6rem .05rem 0; }
  .bars div { display: flex; height: .9rem; } .bars i { display: block; }
  .legend .dotted { border-top-style: dotted; }
  .legend .dot { width: 9px; height: 9px; border: 0; border-radius: 50%; }
  .legend .ring { width: 9px; height: 9px; border: 1px solid; border-radius: 50%; }
  table { border-collapse: collapse; font-size: .85rem; width: 100%; }
  th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #eef2f6; }
  th { color: #64748b; font-weight: 600; } small { overflow-wrap: anywhere; }
  pre { font-size: .82rem; margin: 0; }
  @media (max-width: 500px) { body { margin: 1rem auto; padding: 0 .5rem; }
    .card, section { padding: .6rem; } .cards { gap: .5rem; }
    table { font-size: .78rem; } th, td { padding-right: .35rem; } }
</style></head><body>
<h1>$title</h1>
$body</body></html>
""")
