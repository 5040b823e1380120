"""Models for many users at once: a scheduler over one context, and an OpenAI-compatible server on top of it.

llm = seeddelta.load("model.gguf", parallel=4, n_ctx=4 * 2048)
scheduler = Scheduler(llm)
for piece in scheduler.submit(llm.tokenize(b"Once upon a time"), Sampling(temperature=0), Limits(max_tokens=32)):
    print(piece.text, end="")
"""

from ..errors import needs_extra

with needs_extra("llama"):
    from .request import Generation, Limits, Piece, TokenScore
    from .sampling import Sampling
    from .scheduler import Scheduler

__all__ = ["Generation", "Limits", "Piece", "Sampling", "Scheduler", "TokenScore"]
