"""Matplotlib's SVG, made to read on light and dark: it takes its colours from the page that holds it."""

import html
import re

# Stand-ins that no palette uses: the figure is drawn in them, and they become the page's text colour.
INK, FAINT = "#010203", "#040506"

# A mid-tone, 4:1 against white and against near-black: a file cannot know the page that will show it.
_STANDALONE = "<style>svg{color:#757e89;font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}</style>"


def for_any_page(svg: str, title: str) -> str:
    """Free the SVG of fixed text colours and fonts, and of ids that a page with several would repeat."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font: (\d+ )?([\d.]+)px [^;\"]*", _font, svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = svg.replace(f"stroke: {FAINT}", "stroke: currentColor; stroke-opacity: 0.14")
    svg = svg.replace(INK, "currentColor")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)


def standalone(svg: str) -> str:
    """The SVG as a file of its own, readable on light and on dark."""
    return svg.replace(">", f">{_STANDALONE}", 1)


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match[1].strip()}; " if match[1] else ""
    return f"{weight}font-size: {match[2]}px"
