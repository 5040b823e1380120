"""What chooses keys or windows in attention, beside the gates of products, for the proof that it pays (_core.Proof)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core

if TYPE_CHECKING:
    from .attention import OwnAttention


def gates_of_attention(attention: OwnAttention, pack_key: str) -> list[_core.ProvenGate]:
    """What chooses keys or windows in the attention of a context; none where it is exact. `pack_key`: of StatePack."""
    own = attention.hook
    if attention.has_events:
        return [
            _core.ProvenGate(
                "event",
                "event-driven attention",
                count=lambda: own.activity()[1],
                pause=own.pause,
                given_up=lambda: own.activity()[3],
                places=lambda: int(own.events()["layers"]),
                run=_core.EVENT_RUN,
            )
        ]
    if not attention.chooses:
        return []
    return [
        _core.ProvenGate(
            pack_key,
            "StatePack of attention",
            count=lambda: own.activity()[0],
            pause=own.pause,
            given_up=lambda: own.activity()[2],
            places=lambda: int(own.counters()["layers"] + own.activity()[2]),
            remedy="see --state-pack-kv-gap-limit",
        )
    ]
