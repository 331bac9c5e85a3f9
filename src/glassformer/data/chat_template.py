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
_MESSAGE = '[{"role": "user", "content": "…"}]'
_TOOL = '[{"type": "function", "function": {"name": "…", "description": "…", "parameters": {…}}}]'


@dataclass(frozen=True)
class ChatTemplate(Config):
    """A checkpoint's chat template.

    Args:
        text: The template.
        names: Special tokens that it may name, as pairs of role and name: `("bos_token", "<s>")`.
        with_tools: The template of conversations with tools, where that is another one; else empty.
    """

    text: str
    names: tuple[tuple[str, str], ...] = ()
    with_tools: str = ""

    @property
    def said(self) -> str | list[dict[str, str]]:
        """What a tokenizer_config.json says of it under `chat_template`."""
        several = {"default": self.text, "tool_use": self.with_tools}
        return [{"name": name, "template": text} for name, text in several.items()] if self.with_tools else self.text

    def render(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = True) -> str:
        """A conversation as one text.

        Args:
            messages: A list of messages, each with a `role` and its `content`, and what else the template reads.
            tools: A list of functions that the model may call, each as a JSON schema.
            add_generation_prompt: End with what an answer begins with.

        Raises:
            TextError: The template is no template, or refuses these messages, or it reads no tools and some are given.
            MissingExtra: jinja2 is not installed, or is too old to be safe.
        """
        told = _plain(messages, "messages are plain data, a role and a content each")
        if not told:
            raise TextError(f"a conversation is a list of messages: {_MESSAGE}; found {messages!r:.80}.")
        schemas = None if tools is None else _plain(tools, f"tools are plain data, a JSON schema each: {_TOOL}")
        environment = _environment()
        text = self.with_tools if tools is not None and self.with_tools else self.text
        try:
            read = _read_by(environment, text) if tools else {"tools"}
            template = environment.from_string(text)
        # jinja2 has errors of many kinds, of templates that are none
        except Exception as error:
            raise TextError(f"the model's chat template refuses these messages: {error}") from error
        if "tools" not in read:
            raise TextError(
                "the model's chat template reads no tools, and a model that was trained without them knows none."
                "\n    Leave tools out, or say of them in a message what is to be known."
            )
        try:
            return template.render(
                messages=told,
                tools=schemas,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **dict(self.names),
            )
        # a template is somebody's program, and may raise anything
        except Exception as error:
            raise TextError(f"the model's chat template refuses these messages: {error}") from error


def _plain(given: Any, wanted: str) -> list[dict[str, Any]]:
    """Return a list of objects as plain data: a template is not handed objects that can do something.

    Raises:
        TextError: It is something else.
    """
    try:
        plain = json.loads(json_text(given))
    except (TypeError, ValueError, RecursionError) as error:
        raise TextError(f"{wanted} ({error}).") from error
    if not isinstance(plain, list) or not all(isinstance(one, dict) for one in plain):
        raise TextError(f"{wanted}, in a list; found {given!r:.80}.")
    return plain


def _read_by(environment: Any, text: str) -> set[str]:
    """Return the names that a template reads of what it is handed."""
    from jinja2 import meta

    return meta.find_undeclared_variables(environment.parse(text))


def chat_template(said: Any, file: str | None, names: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template of a folder, None if it has none.

    Args:
        said: What tokenizer_config.json says under `chat_template`: one, or several with a `name` each, of which the
            one called "default" is taken, and the one called "tool_use" of conversations with tools.
        file: What chat_template.jinja holds, which counts where both are there.
        names: Special tokens by role.
    """
    named = {one["name"]: one.get("template") for one in said if _is_named(one)} if isinstance(said, list) else {}
    text = (named.get("default") if isinstance(said, list) else said) if file is None else file
    if not isinstance(text, str):
        return None
    with_tools = named.get("tool_use") if file is None else None
    return ChatTemplate(text, tuple(names.items()), with_tools if isinstance(with_tools, str) else "")


def _is_named(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("name"), str)


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
