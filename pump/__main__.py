"""`python -m pump` is the command `pump`."""

import sys

from pump.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
