"""Write `schema.json`: `python -m glassformer.serve web/schema.json`."""

import sys
from pathlib import Path

from glassformer.serve.schema import text

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
