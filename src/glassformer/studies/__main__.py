"""`python -m glassformer.studies NAME…`: run studies at the small scale and put their reports into the package."""

import sys

from glassformer.files import json_text, write
from glassformer.study import run_study
from glassformer.study.report import document
from glassformer.study.shelf import shipped, shipped_at

for name in sys.argv[1:]:
    found = document(run_study(name), shipped(name))
    path = shipped_at(name)
    path.parent.mkdir(exist_ok=True)
    write(path, (json_text(found, indent=1, ascii_only=False) + "\n").encode())
    print(name, {claim["text"]: claim["verdict"] for claim in found["claims"]})
