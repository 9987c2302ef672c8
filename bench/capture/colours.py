"""The colours of the plots of capture: those of bench/plots.py."""

from __future__ import annotations

from typing import Final

BLUE: Final = "#2a6f97"
RED: Final = "#b23a48"
GREY: Final = "#8d99ae"
