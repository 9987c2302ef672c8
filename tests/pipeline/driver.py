"""Runs the pipeline as a process of its own, for tests that kill it: python -m tests.pipeline.driver DATA"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from roskva.pipeline.query import run
from tests.pipeline.standin import settings_for

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(run(settings_for(Path(sys.argv[1]), propagation_timeout_s=60.0)))
