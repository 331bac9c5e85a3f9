"""`python -m glassformer`: the command line, also where the script `glassformer` is not on the path."""

import sys

from glassformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
