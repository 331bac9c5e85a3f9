"""Compute and draw what the pages on theory show (`make theory`).

    python docs/make_theory.py [PAGE …]       all pages in docs/theory, or some of them

Of each view a picture, `docs/images/theory/PAGE.png`, and numbers in words, in `seen.json` beside it; of one with many
rows these, in `PAGE.json`. `make tables` puts both on its page. All of it takes a minute; what takes longer is a study.
"""

import io
import json
import sys
from pathlib import Path

import theory_of_blocks
import theory_of_maps
import theory_of_models
import theory_of_states
import theory_of_training
from PIL import Image

from glassformer.figures import draw

FOLDER = Path(__file__).resolve().parent / "images" / "theory"
SEEN = FOLDER / "seen.json"
OF = theory_of_states, theory_of_blocks, theory_of_maps, theory_of_training, theory_of_models
VIEWS = {page: view for module in OF for page, view in module.VIEWS.items()}


def main(pages: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    for page in pages or VIEWS:
        panels, known[page] = VIEWS[page]()
        picture = io.BytesIO()
        draw(panels).savefig(picture, dpi=80)
        # few colours are a third of the bytes
        Image.open(picture).convert("RGB").quantize(256).save(FOLDER / f"{page}.png", optimize=True)
        if page in theory_of_maps.ROWS:
            rows = json.dumps(theory_of_maps.ROWS[page](), indent=1, ensure_ascii=False)
            (FOLDER / f"{page}.json").write_text(rows + "\n", encoding="utf-8")
        SEEN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
