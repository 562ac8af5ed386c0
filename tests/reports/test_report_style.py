"""The style sheet: contrast of every text colour in light and dark (WCAG 2.2, 1.4.3), nothing loaded from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = (files("assay.reports") / "assets" / "site.css").read_text(encoding="utf-8")
PAIRS = {name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", CSS)}
TEXTS = [
    "text",
    "muted",
    "accent",
    "pass",
    "fail",
    "non-strict",
    "unsupported",
    "xfail",
    "xpass",
    "error",
    "unknown",
]
MIN_TEXT_CONTRAST = 4.5


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def mixed(colour: str, ground: str, share: float) -> str:
    """``color-mix`` in sRGB, as the tinted cells and banners use it."""
    parts = [
        round(int(colour[at : at + 2], 16) * share + int(ground[at : at + 2], 16) * (1 - share)) for at in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02x}" for part in parts)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_stands_out_from_every_ground(name: str, scheme: int) -> None:
    text = PAIRS[name][scheme]
    grounds = {ground: PAIRS[ground][scheme] for ground in ("page", "raised", "sunken")}
    grounds["own tint"] = mixed(text, PAIRS["raised"][scheme], 0.13)
    weak = {ground: round(contrast(text, colour), 2) for ground, colour in grounds.items()}
    assert all(ratio >= MIN_TEXT_CONTRAST for ratio in weak.values()), weak


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_lines_of_charts_stand_out(scheme: int) -> None:
    series = {name: pair[scheme] for name, pair in PAIRS.items() if name.startswith("series-")}
    assert len(series) == 8
    weak = {name: contrast(colour, PAIRS["raised"][scheme]) for name, colour in series.items()}
    assert all(ratio >= 3 for ratio in weak.values()), weak


def test_the_style_sheet_loads_nothing() -> None:
    assert "url(" not in CSS
    assert "@import" not in CSS
