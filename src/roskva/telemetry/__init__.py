"""What the service tells about itself: counters, gauges and histograms, read at /metrics."""
