"""Chat templates and token counts from a model's folder, without transformers or torch.

The API counts prompt tokens with it before a task is accepted; the deterministic engine renders with it.
Its token ids equal those of vLLM's renderer (`tests/engine/test_chat_template.py`), so a count made at
admission is the count the engine will bill.

Source: the sandbox, its filters and its globals follow transformers' `render_jinja_template`; how messages
are normalised follows vLLM 0.32 `renderers/chat_utils.py`. Templates come with a model and run sandboxed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
SPECIAL_TOKENS = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
RESERVED_KWARGS = frozenset(
    {  # arguments of the renderer itself: a caller's would replace its input or its output
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class TemplateError(ValueError):
    """The messages can't be rendered: the template refused them or they have parts that aren't text."""


class _Generation(jinja2.ext.Extension):
    """Training's `{% generation %}` block: its body is rendered as if the tag were not there."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the tag by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _loops_over_content(template: str) -> bool:
    """Whether a template reads message content as a list of parts rather than as one string."""

    def is_content(node: jinja2.nodes.Node) -> bool:
        while isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test) and node.node is not None:
            node = node.node
        if isinstance(node, jinja2.nodes.Getitem):
            return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
        if isinstance(node, jinja2.nodes.Getattr):
            return node.attr == "content"
        return isinstance(node, jinja2.nodes.Name) and node.name == "content"

    tree = _environment().parse(template)
    return any(is_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


class ModelTokenizer:
    """A model folder's tokenizer and chat template."""

    def __init__(self, path: Path | str) -> None:
        """Read the folder. Raises: FileNotFoundError, ValueError when it holds no usable tokenizer."""
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: is {folder} a model folder?")
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text()) if config_file.is_file() else {}
        self.special_tokens: dict[str, str] = {}
        for name in SPECIAL_TOKENS:
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                self.special_tokens[name] = token
        self._templates = _templates(folder, config)
        self._compiled: dict[str, tuple[Callable[..., str], bool, bool]] = {}

    @property
    def vocabulary(self) -> int:
        """How many tokens there are; ids are below it."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def token_id(self, token: str) -> int | None:
        """The id of one token's exact text, None when the vocabulary lacks it."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a generation, as far as the tokenizer knows."""
        token = self.special_tokens.get("eos_token")
        return None if token is None else self.token_id(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids. Raises: TemplateError when the text isn't Unicode (a lone surrogate)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateError("the text holds a lone surrogate") from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The ids' text."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation, open for the assistant's turn.

        Raises: TemplateError when the template refuses the conversation.
        """
        if not messages:
            raise TemplateError("messages must hold at least one message")
        kwargs = dict(chat_template_kwargs or {})
        if reserved := RESERVED_KWARGS & kwargs.keys():
            raise TemplateError(f"chat_template_kwargs can't set {', '.join(sorted(reserved))}")
        render, wants_parts, knows_developer = self._template(tools is not None)
        conversation = [_message(message, wants_parts) for message in messages]
        if not knows_developer and any(message["role"] == "developer" for message in conversation):
            conversation = _developer_to_system(conversation)
        try:
            return render(
                messages=conversation,
                tools=None if tools is None else [_tool(tool) for tool in tools],
                documents=None,
                add_generation_prompt=True,
                **{**self.special_tokens, **kwargs},
            )
        except Exception as error:  # a template is a program: it can fail in any way
            raise TemplateError(str(error) or type(error).__name__) from error

    def encode_chat(self, body: Mapping[str, Any]) -> list[int]:
        """The prompt's token ids of a chat completion body. Raises: TemplateError."""
        kwargs = dict(body.get("chat_template_kwargs") or {})
        effort = body.get("reasoning_effort")
        if effort is not None:  # as vLLM: templates that need an opt-in to thinking get it
            kwargs.setdefault("enable_thinking", effort != "none")
            kwargs["reasoning_effort"] = effort
        text = self.render_chat(
            body["messages"], tools=body.get("tools") or None, chat_template_kwargs=kwargs
        )
        return self.encode(text, add_special_tokens=False)  # templates write the special tokens themselves

    def encode_prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """The prompt's token ids of a completion body's `prompt`. Raises: TemplateError."""
        return self.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else list(prompt)

    def count_chat(self, body: Mapping[str, Any]) -> int:
        """Prompt tokens of a chat completion body. Raises: TemplateError."""
        return len(self.encode_chat(body))

    def count_text(self, text: str, add_special_tokens: bool = True) -> int:
        """Tokens of a plain prompt. Raises: TemplateError."""
        return len(self.encode(text, add_special_tokens))

    def _template(self, with_tools: bool) -> tuple[Callable[..., str], bool, bool]:
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise TemplateError("the model has no chat template: it can't take messages")
        if name not in self._compiled:
            source = self._templates[name]
            try:
                compiled = _environment().from_string(source).render
                wants_parts = _loops_over_content(source)
            except jinja2.TemplateError as error:
                raise TemplateError(f"the model's chat template can't be read: {error}") from error
            self._compiled[name] = compiled, wants_parts, '"developer"' in source or "'developer'" in source
        return self._compiled[name]


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text()}
    found = config.get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found}
    return {}


def _content(content: Any, wants_parts: bool) -> Any:
    """Content as a template takes it: parts, or one string. Empty parts leave no trace in the string."""
    texts = _texts(content)
    if wants_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(text for text in texts if text)


def _texts(content: Any) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type")
        if kind not in TEXT_PARTS:
            raise TemplateError(f"content part type {kind!r} is not supported: only text is")
        text = part.get(TEXT_PARTS[kind])
        if text is not None:
            texts.append(text)
    return texts


def _message(message: Mapping[str, Any], wants_parts: bool) -> dict[str, Any]:
    role = message["role"]
    result: dict[str, Any] = {"role": role, "content": _content(message.get("content"), wants_parts)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            result["tool_calls"] = [_tool_call(call) for call in calls]
        reasoning = message.get("reasoning") or message.get("reasoning_content")
        if reasoning is not None:
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        if wants_parts:  # templates take a tool's result as one string, whatever they do with other roles
            result["content"] = "\n".join(_texts(message.get("content")))
    elif role == "developer":
        result["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        result["name"] = message["name"]
    return result


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Templates expect arguments as an object; the wire has them as JSON text."""
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    function["arguments"] = arguments if isinstance(arguments, dict) else {}
    return {**call, "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with the fields and their order that vLLM hands to templates."""
    function = tool["function"]
    fields: dict[str, Any] = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    if function.get("strict") is not None:
        fields["strict"] = function["strict"]
    return {"type": "function", "function": fields}


def _developer_to_system(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developer messages become one system message in front: most templates know no other."""
    system: list[str] = []
    others: list[dict[str, Any]] = []
    for message in conversation:
        if message["role"] not in ("developer", "system"):
            others.append(message)
            continue
        content = message["content"]
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        if text:
            system.append(text)
    if len(conversation) - len(others) == 1 and conversation[0]["role"] in ("developer", "system"):
        return [{**_without_tools(conversation[0]), "role": "system"}, *others]
    return [{"role": "system", "content": "\n\n".join(system)}, *others]


def _without_tools(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "tools"}
