"""Write `schema.json`: `python -m glassformer.serve web/schema.json`."""

import sys
from pathlib import Path

from glassformer.serve.schema import text

Path(sys.argv[1]).write_text(text(), encoding="utf-8")
