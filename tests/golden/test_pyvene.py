"""An exchange in a rotated subspace gives the logits that pyvene 0.1.8 gave for the same model, prompts and directions.

What is stored was written by its `LowRankRotatedSpaceIntervention` at the output of block 0 and position 4 of a tiny
GPT-2 of transformers, in float32.
"""

from pathlib import Path

from safetensors.torch import load_file

import glassformer as gf
from glassformer.testing import close
from glassformer.trace import At, Interchange

HERE = Path(__file__).parent / "pyvene"
SITE = "blocks.0.resid_post"


def test_an_exchange_gives_the_logits_of_the_same_one_in_pyvene() -> None:
    model, stored = gf.load(HERE), load_file(HERE / "expected.safetensors")
    source = gf.run(model, stored["source"], read=[SITE])
    edit = Interchange(SITE, source, stored["directions"], at=At(pos=4))
    # both compute in float32
    close(gf.run(model, stored["base"], edit=edit).predictions(), stored["logits"], 1e-5)
    assert (stored["logits"] - stored["plain"])[:, 4:].abs().amax(-1).min() > 0.01
