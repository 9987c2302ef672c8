"""Measurements of capture: `python -m bench capture-NAME` is the module NAME here, `python -m bench capture` all of them.

A module has `measure(options) -> Result`, whose name is that of the command, and `draw(axes, document)`, which draws the kept result. Each
starts a database of its own (or a log on disk), real processes of `roskva capture` over it, and ends them all.
"""
