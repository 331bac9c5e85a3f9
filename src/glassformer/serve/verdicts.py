"""What studies found of a mechanism: the verdicts on claims about it, study by study."""

import torch

from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.serve import api
from glassformer.serve.answers import Answer
from glassformer.serve.runs import ServedModel
from glassformer.study import find
from glassformer.study.atlas import atlas, tally
from glassformer.study.claims import VERDICTS
from glassformer.trace import sites_of_heads
from glassformer.words import speaking, spoken


def verdicts(served: ServedModel, head: str, view: api.VerdictsView) -> Answer:
    """Return how many claims about the mechanism of a head hold, fail and are undecided, by study."""
    model = served.model
    part = model.sub_layer(sites_of_heads(model.sites(), head)["z"].path).attention
    assert part is not None, "what has mixed values attends"
    kind = part.config.mixer.kind or ""
    claims = [claim for cell in atlas().mechanisms.get(kind, []) for claim in cell.claims]
    if not claims:
        raise AnalysisUnavailable(
            f'no study that ships makes a claim about "{kind}".\n    What there is: glassformer study atlas.'
        )
    studies = sorted({claim.study for claim in claims})
    counts = [list(tally(one for one in claims if one.study == study).values()) for study in studies]
    with speaking(view.lang):
        questions = {study: spoken(find(study).question) for study in studies}
    coords = {"study": studies, "verdict": list(VERDICTS)}
    arrays = {"counts": Labelled(torch.tensor(counts, dtype=torch.float32), ("study", "verdict"), coords)}
    lines = [
        "import torch",
        "import glassformer as gf",
        "from glassformer.study.atlas import atlas, tally",
        "",
        f"claims = [claim for cell in atlas().mechanisms[{kind!r}] for claim in cell.claims]",
        f"studies = {studies}",
        "counts = [list(tally(one for one in claims if one.study == study).values()) for study in studies]",
        "found = {'counts': gf.Labelled(torch.tensor(counts).float(), ('study', 'verdict'))}",
    ]
    return Answer("verdicts", arrays, {"mechanism": kind, "questions": questions}, "\n".join(lines))
