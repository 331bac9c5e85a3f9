"""A model that gives words the meaning their neighbours decide."""

import torch

from glassformer.data.tasks.senses import COLOURS, CREATURES, HOMOGRAPHS, TEXTURES, sense_symbols
from glassformer.handmade.assemble import HeadMatrices, assemble, layout
from glassformer.models import Decoder


def senses_model(*, beta: float = 30.0, c: float = 10.0, max_len: int = 32) -> Decoder:
    """Build two heads that bring adjectives to nouns: one the word that decides the sense, one the colour.

    The stream: token (V) | sense (V) | colour (V). L0H0 goes from nouns to textures and domains and copies the word
    found into `sense`; L0H1 goes from nouns to colours and copies into `colour`. Anywhere else, and where there is
    nothing to find, both rest on `<bos>` and copy nothing.

    Known in closed form, for one phrase of the grammar (`data.senses`), up to e^-beta: in two contexts that differ in
    the deciding word alone, a noun's stream after the layer differs by one in `sense` at the one word less one at the
    other, all of it written by L0H0, half of it (along the difference) taken from the deciding word of either context;
    two colours likewise, by L0H1. The embedding moves nothing. Logits: c for the verbs that fit the noun, c for those
    that fit the deciding word; the verb of the sentence alone has 2c. Colours have no effect on logits.

    Args:
        beta: How sharply nouns look.
        c: Size of the logits.
        max_len: Longest context.
    """
    symbols = sense_symbols()
    ids = {word: i for i, word in enumerate(symbols)}
    n = len(symbols)
    token, sense, colour = layout(token=n, sense=n, colour=n).values()
    deciding = [*TEXTURES, *(domain for senses in HOMOGRAPHS.values() for domain in senses)]
    nouns = [*CREATURES, *HOMOGRAPHS]
    verbs = [(texture, verb) for texture, verb in TEXTURES.items()]
    verbs += [pair for senses in HOMOGRAPHS.values() for pair in senses.items()]
    fitting = [(noun, verb) for noun in CREATURES for verb in TEXTURES.values()]
    fitting += [(noun, verb) for noun, senses in HOMOGRAPHS.items() for verb in senses.values()]

    embed, unembed = (torch.zeros(n, 3 * n, dtype=torch.float64) for _ in range(2))
    embed[:, token] = torch.eye(n, dtype=torch.float64)
    for noun, verb in fitting:
        unembed[ids[verb], token.start + ids[noun]] = c
    for word, verb in verbs:
        unembed[ids[verb], sense.start + ids[word]] = c
    heads = []
    for wanted, write in ((deciding, sense), (COLOURS, colour)):
        head = HeadMatrices.zero(3 * n, 2, n)
        # one pair of coordinates rests everyone on <bos>, the other sends nouns further, twice as strongly
        head.query[token, 0] = 1.0
        head.key[token.start + ids["<bos>"], 0] = beta
        for noun in nouns:
            head.query[token.start + ids[noun], 1] = 1.0
        for word in wanted:
            head.key[token.start + ids[word], 1] = 2 * beta
        head.value[token] = torch.eye(n, dtype=torch.float64)
        head.value[token.start + ids["<bos>"]] = 0.0
        head.output[:, write] = torch.eye(n, dtype=torch.float64)
        heads.append(head)
    return assemble(embed, unembed, [heads], symbols=symbols, max_len=max_len)
