"""`glassformer attention`: what every head looks at in a text."""

from glassformer.cli.arguments import model_of, prompt_of
from glassformer.cli.options import ModelName, Opening, Output, Target, Text
from glassformer.cli.output import check, finish
from glassformer.config import require


def attention(
    model: ModelName,
    text: Text = None,
    /,
    target: Target = None,
    *,
    opening: Opening,
    output: Output,
) -> None:
    """What every head of a model looks at in a text; of any model, an encoder without a head for its vocabulary too.

    On the terminal come the keys that each head looks at most; the page has the whole pattern of each. Layers whose
    mechanism has no pattern are named.

    Examples:
        glassformer attention gpt-4l "for i in range(10):" --html heads.html
        glassformer attention zh-en 我喜欢猫 --lang zh
    """
    from glassformer import analysis
    from glassformer.analysis.reports.attention import attention_of, pattern_sites
    from glassformer.cli.tokens_read import TokensRead, tokens_of
    from glassformer.files import json_text
    from glassformer.render.page import attention_page
    from glassformer.render.terminal.attention import most_seen

    require(text is not None, "give a text, whose tokens the heads look at.")
    assert text is not None
    check(output)
    loaded = model_of(model, opening)
    run = analysis.run(loaded, prompt_of(loaded, text), target, read=pattern_sites(loaded))
    found, read = attention_of(run), tokens_of(run)
    finish(
        [TokensRead(read.rows, marks=read.marks).shown(), "", most_seen(found)],
        JSON=(output.json, lambda: json_text(found.to_dict(), ascii_only=False)),
        page=(output.html, lambda: attention_page(found.to_dict())),
    )
