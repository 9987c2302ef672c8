"""Measurements of the whole service: `python -m bench NAME`. They print figures and ratios, and are never tests."""
