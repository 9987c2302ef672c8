"""The load generator: up to a million simulated clients over trusted lines, and the publishes that they hear of (docs/load.md)."""
