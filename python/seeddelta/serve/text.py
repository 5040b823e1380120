"""Text of a reply from the bytes of its tokens, as it comes: whole characters, cut at the first stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StreamedText:
    """What may be shown of a reply so far.

    Tokens may end inside a character, and a stop string may begin in one token and end in a later one. So a character
    is given when it is whole, and text that may yet become a stop string is held back.

    Args:
        stop: strings that end the reply; they are no part of it.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(text for text in stop if text)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, data: bytes) -> str:
        """The bytes of the next token. Returns the text that is now certain; after a stop string always ""."""
        return "" if self.stopped else self._advance(self._decoder.decode(data))

    def finish(self) -> str:
        """The end. Returns what was held back; a character that is not whole becomes U+FFFD."""
        if self.stopped:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + ("" if self.stopped else held)

    def _advance(self, new: str) -> str:
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = len(text) - self._ambiguous(text)
        self._held = text[keep:]
        return text[:keep]

    def _ambiguous(self, text: str) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
