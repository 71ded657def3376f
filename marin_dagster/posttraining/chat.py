"""Turns the messages of a conversation into token ids and loss weights, and says the same in Jinja.

`<s>` opens the conversation; a turn is `<|role|>`, the content, `<|end|>`. Control ids are placed
by number and contents are encoded as plain text, so no content can forge a turn. The loss falls on
what the assistant writes: its content and the `<|end|>` that closes its turn.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marin_dagster.recipe import StageError

if TYPE_CHECKING:
    from marin_dagster.data.tokenizer import TextTokenizer

ROLES = ("system", "user", "assistant")
END = "<|end|>"

CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('role ' + message['role'] + ' is not system, user or assistant') -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}"
    "{%- else -%}"
    "{{- message['content'] + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def role_piece(role: str) -> str:
    """The control piece that opens a turn; raises StageError for an unknown role."""
    if role not in ROLES:
        raise StageError(
            "bad_input",
            f"role={role!r} of a message is not one of {', '.join(ROLES)}; rename it in the data",
        )
    return f"<|{role}|>"


def render(
    messages: Sequence[Mapping[str, Any]], tokenizer: "TextTokenizer"
) -> tuple[list[int], list[int]]:
    """Returns a conversation's ids, and for each id 1 when the assistant writes it, else 0."""
    ids, weights = [tokenizer.bos_id], [0]
    end = tokenizer.token_id(END)
    for message in messages:
        content = [*tokenizer.encode(message["content"]), end]
        ids += [tokenizer.token_id(role_piece(message["role"])), *content]
        weights += [0, *[int(message["role"] == "assistant")] * len(content)]
    return ids, weights


def render_prompt(messages: Sequence[Mapping[str, Any]], tokenizer: "TextTokenizer") -> list[int]:
    """Returns the ids after which the assistant's next turn begins."""
    ids, _ = render(messages, tokenizer)
    return [*ids, tokenizer.token_id(role_piece("assistant"))]


def show_mask(ids: Sequence[int], weights: Sequence[float], tokenizer: "TextTokenizer") -> str:
    """Returns Markdown in which lines marked `+` reach the loss and the others are only read."""
    lines: list[str] = []
    start = 0
    for stop in range(1, len(ids) + 1):
        if stop == len(ids) or weights[stop] != weights[start]:
            mark = "+" if weights[start] else " "
            text = tokenizer.visible(ids[start:stop])
            lines += [f"{mark} {line}" for line in text.split("\n")]
            start = stop
    return "````diff\n" + "\n".join(lines) + "\n````"
