"""`python -m glassformer.zoo NAME RUN`: ship a finished run's model, or as `MODEL/SITE` a dictionary of a shipped one.

Without RUN what ships is measured again.
"""

import sys
from pathlib import Path

from glassformer.zoo import dictionaries
from glassformer.zoo.build import build, refresh

here = Path(__file__).parent
name, *run = sys.argv[1:]
if "/" in name:
    card = dictionaries.build(name, Path(run[0])) if run else dictionaries.refresh(name)
else:
    card = build(name, Path(run[0]), here) if run else refresh(name, here)
print(card.to_markdown())
