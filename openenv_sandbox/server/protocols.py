"""Shapes that environments for language models agree on; nothing here is a base class."""

from __future__ import annotations

from typing import Any, Protocol

from typing_extensions import TypedDict


class Message(TypedDict):
    """One message of a conversation.

    Attributes:
        role: Who speaks: ``system``, ``user``, ``assistant`` or ``tool``.
        content: What is said.
    """

    role: str
    content: str


class ModelTokenizer(Protocol):
    """What an environment needs of a tokenizer."""

    def apply_chat_template(
        self,
        conversation: list[Message],
        tokenize: bool = True,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """The conversation as text, or as tokens where ``tokenize``."""
        ...

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """The text of tokens."""
        ...
