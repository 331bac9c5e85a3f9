"""Conversations as what a model reads."""

from typing import Any

from glassformer.arguments import checked
from glassformer.errors import TextError
from glassformer.models.model import ModelLike, require_model
from glassformer.models.reading import tokenizer_for


@checked
def chat(model: ModelLike, messages: Any, *, tools: Any = None, add_generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation, as the model's chat template writes it.

    They are what `run`, `generate`, `explain` and whatever else reads a text take. Names of special tokens stand for
    the tokens in all of it, also in what a message says: a message can forge the end of a turn, as in transformers.

    Args:
        model: A model whose folder brought a chat template; of an encoder-decoder, the conversation is its source.
        messages: A list of messages, each with a `role` and its `content`, and what else the template reads.
        tools: Functions that the model may call: a list of JSON schemas, as its template reads them. What an answer
            says of them is text; nothing is called.
        add_generation_prompt: End with what an answer begins with; without, with the end of the last message.

    Raises:
        TextError: The model has no tokenizer or no template, or the template refuses these messages, or it reads no
            tools and some are given.
        MissingExtra: jinja2 is not installed.

    Example:
        ids = gf.chat(model, [{"role": "user", "content": "Is it raining?"}])
        gf.generate(model, ids).texts, gf.run(model, ids).tokens

    Source: The chat templates of Hugging Face transformers.
    """
    model = require_model(model, "chat")
    tokenizer = tokenizer_for(model, model.tokenizer_of(model.source))
    if tokenizer.chat is None:
        raise TextError(
            "this model has no chat template: its folder has no chat_template.jinja, and tokenizer_config.json no "
            'chat_template.\n    Write the conversation as its model card does, and read it with specials="in-text".'
        )
    text = tokenizer.chat.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
    return tokenizer.adding("in-text").read(text, model=model.name)
