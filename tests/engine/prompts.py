"""Natural-text prompts for a real model, as token ids.

Synthetic prompts degenerate: the model answers one repeated token whatever the cache did. And a prefix that was used
before is warm in a "cold" pass. So prompts are windows of a novel that do not overlap.
"""
import os

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "northanger_abbey.txt")


class Prompts:
    """Hands out windows of the text; no two of one instance overlap until the text is used up."""

    def __init__(self, tokenizer):
        with open(TEXT, encoding="utf-8") as f:
            self._tokens = tokenizer.encode(f.read(), add_special_tokens=False)
        self._next = 0

    @property
    def total_tokens(self) -> int:
        return len(self._tokens)

    def window(self, begin: int, tokens: int) -> list[int]:
        """The tokens from `begin` on, whoever else has them."""
        if begin + tokens > len(self._tokens):
            raise ValueError(f"the text has {len(self._tokens)} tokens, not {begin + tokens}")
        return self._tokens[begin:begin + tokens]

    def take(self, tokens: int) -> list[int]:
        """The next `tokens` token ids, never seen before."""
        if self._next + tokens > len(self._tokens):
            raise ValueError(f"the text has {len(self._tokens)} tokens and all are used")
        window = self._tokens[self._next:self._next + tokens]
        self._next += tokens
        return window
