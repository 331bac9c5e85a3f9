"""Chat templates: what a checkpoint's conversation looks like as one text, names of special tokens in it.

A template is a program in jinja2's language that came with the weights: it runs in the sandbox that the library keeps
for what it does not trust.
"""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from glassformer.config import Config
from glassformer.errors import MissingExtra, TextError
from glassformer.files import json_text

FILE, FIELD = "chat_template.jinja", "chat_template"
# older ones have ways out of the sandbox
OLDEST = (3, 1, 6)


@dataclass(frozen=True)
class ChatTemplate(Config):
    """A checkpoint's chat template.

    Args:
        text: The template.
        names: Special tokens that it may name, as pairs of role and name: `("bos_token", "<s>")`.
    """

    text: str
    names: tuple[tuple[str, str], ...] = ()

    def render(self, messages: Any, *, add_generation_prompt: bool = True) -> str:
        """A conversation as one text.

        Args:
            messages: A list of messages, each with a `role` and its `content`, and what else the template reads.
            add_generation_prompt: End with what an answer begins with.

        Raises:
            TextError: The template is no template, or refuses these messages.
            MissingExtra: jinja2 is not installed, or is too old to be safe.
        """
        try:
            # plain data: a template is not handed objects that can do something
            plain = json.loads(json_text(messages))
        except (TypeError, ValueError, RecursionError) as error:
            raise TextError(f"messages are plain data, a role and a content each ({error}).") from error
        if not isinstance(plain, list) or not plain or not all(isinstance(one, dict) for one in plain):
            raise TextError(
                'a conversation is a list of messages: [{"role": "user", "content": "…"}]; found '
                + f"{messages!r:.80}."
            )
        environment = _environment()
        try:
            template = environment.from_string(self.text)
            return template.render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **dict(self.names),
            )
        # a template is somebody's program, and may raise anything
        except Exception as error:
            raise TextError(f"the model's chat template refuses these messages: {error}") from error


def chat_template(said: Any, file: str | None, names: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template of a folder, None if it has none.

    Args:
        said: What tokenizer_config.json says under `chat_template`: one, or several with a `name` each, of which the
            one called "default" is taken.
        file: What chat_template.jinja holds, which counts where both are there.
        names: Special tokens by role.
    """
    if isinstance(said, list):
        several = [one for one in said if isinstance(one, Mapping) and one.get("name") == "default"]
        said = several[0].get("template") if several else None
    text = said if file is None else file
    return ChatTemplate(text, tuple(names.items())) if isinstance(text, str) else None


def _environment() -> Any:
    """Return the sandbox that templates run in, with what they are used to find in it."""
    try:
        import jinja2
        from jinja2 import ext, nodes, sandbox
        from jinja2.utils import Namespace

        version = metadata.version("jinja2")
    except ImportError as error:
        raise MissingExtra("chat templates need jinja2: pip install 'glassformer[chat]'.") from error
    if tuple(int(part) for part in version.split(".")[:3] if part.isdecimal()) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingExtra(f"chat templates need jinja2 {oldest}, found {version}: pip install -U 'glassformer[chat]'.")

    class Marked(ext.Extension):
        """What is marked as written by the model, `{% generation %}`, as it is."""

        tags = {"generation"}

        def parse(self, parser: Any) -> "nodes.Node | list[nodes.Node]":
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Names(Namespace):
        """Variables of a template; none that would reach behind the sandbox."""

        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__()
            for name, value in dict(*given, **more).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.TemplateError(f"{name!r} is no name for a variable of a template.")
            super().__setitem__(name, value)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # the text is a prompt's, spelt as templates say
        return json.JSONEncoder(ensure_ascii=ensure_ascii, **options).encode(value)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Marked, ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": Names}
    return made
