"""SeedΔ files, dense source models and importance matrices, all in GGUF (needs the extra `cli` or `llama`)."""

from ..errors import needs_extra

with needs_extra("cli"):
    import gguf as _gguf  # noqa: F401
    import pydantic as _pydantic  # noqa: F401
