"""`python -m roskva`: the command line, for where the script `roskva` is not in the path."""

import sys

from roskva.cli import main

if __name__ == "__main__":
    sys.exit(main())
