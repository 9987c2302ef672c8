"""Capture: reads committed changes from a database's own log, and brings them to whoever subscribes: in order, at least once (Wormhole)."""
