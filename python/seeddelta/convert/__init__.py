"""Turn a dense GGUF model into a SeedΔ file: `seeddelta.build(seeddelta.Recipe(input=…, output=…))`.

Needs the extra `cli` or `llama`.
"""

from .. import gguf as _gguf  # first: it says what to install when a package is missing  # noqa: F401
