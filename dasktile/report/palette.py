"""Colours of pictures and charts: a colour-blind-safe palette (Okabe and Ito)."""

from __future__ import annotations

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, RED, YELLOW, LIGHT_GREY = "#56b4e9", "#d55e00", "#f0e442", "#999999"

#: All of them, in the order in which workers get them.
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, LIGHT_GREY)
