"""`python -m glassformer.zoo NAME RUN`: ship the model of a finished run under a name."""

import sys
from pathlib import Path

from glassformer.zoo.build import build

print(build(sys.argv[1], Path(sys.argv[2]), Path(__file__).parent).to_markdown())
