"""All settings, each declared once: a pydantic field has its type, range, default, help and flag.

The command line, --set, YAML files, the JSON schema, the reference page and what the extension gets come from these.
"""

from __future__ import annotations

from ..errors import needs_extra

with needs_extra("cli"):
    import pydantic as _pydantic  # noqa: F401

from .attention import StatePackKV
from .runtime import RuntimeConfig
from .skipping import EventDriven, Kwta, StatePackMLP
from .tree import Flag, Setting, Settings, settings_of

__all__ = [
    "EventDriven",
    "Flag",
    "Kwta",
    "RuntimeConfig",
    "Setting",
    "Settings",
    "StatePackKV",
    "StatePackMLP",
    "settings_of",
]
