"""`python -m glassformer.zoo NAME RUN`: ship a finished run's model; without RUN, measure the shipped one again."""

import sys
from pathlib import Path

from glassformer.zoo.build import build, refresh

here = Path(__file__).parent
name, *run = sys.argv[1:]
print((build(name, Path(run[0]), here) if run else refresh(name, here)).to_markdown())
