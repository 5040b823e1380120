"""Options of KWTA, StatePack in the MLP and events: which inputs a token computes with (docs/skipping.md)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from ..errors import ConfigError

Values = Mapping[str, float]

# A step above what cost about 1% each on SmolLM2-135M (benchmarks/bench_skipping.py): ffn_down and attn_output 0.5,
# gate and up 0.7. Query, key and value stay whole: 0.7 cost 3%.
DEFAULT_KEEP: Values = {"ffn_down": 0.6, "ffn_gate": 0.8, "ffn_up": 0.8, "attn_output": 0.6}
BLOCKS = (1, 16, 32, 64)
SCOPES = ("mlp", "attn", "both")


@dataclass(frozen=True)
class Kwta:
    """KWTA: of the inputs of a matrix only those with the largest scores are computed with.

    Attributes:
        k: fraction of the units that is kept, 0 < k <= 1: one for all, or {pattern: fraction}, where a pattern is a
            target (`ffn_down`, `attn`, `ffn`) or a shell pattern of names (`blk.0.*`) and the last that matches holds.
            Matrices without a fraction are computed whole. Default: DEFAULT_KEEP.
        k_abs: their number instead, 0: the fraction holds.
        temperature: of the softmax in `renormalise`, in multiples of the root mean square of the inputs; 0: none. It
            changes nothing else: a softmax keeps the order of the scores.
        duty: the choice is made for every duty-th token; the others are computed whole.
        target: mlp, attn or both.
        block: inputs that are kept or skipped together: 1, 16, 32 or 64. Blocks are ranked by their energy.
        score: `magnitude` |x|, or `wina`: |x| times the norm of the input's weights (Chen et al. 2025).
        select: `topk` keeps exactly k of them; `threshold` those above the thresholds of `file`, one comparison.
        renormalise: multiply what is kept by 1 / the share that is kept.
        file: fractions and thresholds a matrix, made by `seeddelta sparsify`; replaces `k` and `score`.
    """

    k: float | Values | None = None
    k_abs: int = 0
    temperature: float = 0.0
    duty: int = 1
    target: Literal["mlp", "attn", "both"] = "both"
    block: int = 1
    score: Literal["magnitude", "wina"] = "wina"
    select: Literal["topk", "threshold"] = "topk"
    renormalise: bool = False
    file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        require(self.target in SCOPES, f"kwta target {self.target!r}", "mlp, attn or both")
        require(self.block in BLOCKS, f"kwta block {self.block}", "1, 16, 32 or 64")
        require(self.score in ("magnitude", "wina"), f"kwta score {self.score!r}", "magnitude or wina")
        require(self.select in ("topk", "threshold"), f"kwta select {self.select!r}", "topk or threshold")
        require(self.duty >= 1, f"kwta duty {self.duty}", "1 (every token) or more")
        require(self.k_abs >= 0, f"kwta k_abs {self.k_abs}", "a number of units")
        require(self.temperature >= 0 and math.isfinite(self.temperature), f"kwta temp {self.temperature}", "0 or more")
        for value in as_values(self.k).values():
            require(0 < value <= 1, f"kwta k {value}", "a fraction above 0 and at most 1")
        conflicts = (
            (self.k is not None and self.k_abs, "kwta k and k_abs both say how many units are kept"),
            (self.file is not None and (self.k is not None or self.k_abs), "the kwta file has the fractions"),
            (self.select == "threshold" and self.file is None, "thresholds need a kwta file (seeddelta sparsify)"),
            (self.select == "threshold" and self.block > 1, "thresholds are for single units, not for blocks"),
            (self.temperature and not self.renormalise, "a kwta temp changes the renormalisation alone; ask for it"),
        )
        for conflict, what in conflicts:
            if conflict:
                raise ConfigError(f"{what}; leave one of the two out")

    def keep_of(self, group: tuple[str, ...]) -> float | None:
        """Fraction for matrices that read one input; None: computed whole."""
        values = as_values(self.k) if self.k is not None else {} if self.k_abs else DEFAULT_KEEP
        return value_of(group, values, self.target)


@dataclass(frozen=True)
class StatePackMLP:
    """StatePack: a bitmap of the inputs that are not nearly zero; the others are skipped, and what is kept is exact.

    Attributes:
        mode: binary (one bitmap) or ternary (one of positive, one of negative inputs; the same units pass).
        eps: inputs of this magnitude or less are skipped. One number, or {pattern: number} as Kwta.k.
        relative: and those below this share of gamma, the moving average of the magnitude of what passed.
        rho: largest share of inputs that pass, on a moving average of about 10 tokens; above it the bitmap is not
            used until the share falls below rho · (1 - hysteresis). One number, or {pattern: number}.
        popcnt: count bits with the fastest instruction (VPOPCNTDQ, PSHUFB, CNT), else one word at a time.
        target: mlp, attn or both.
        aggressive: while the bitmap is used, products of single tokens are those of signs: of the inputs (times their
            mean magnitude) and of ternary weights made when the model is loaded (Li et al. 2016, Ternary Weight
            Networks), by AND and popcount. Needs ternary and columns of float16. It costs a model its sense.
    """

    mode: Literal["binary", "ternary"] = "binary"
    eps: float | Values = 1e-4
    relative: float = 0.0
    rho: float | Values = 0.15
    hysteresis: float = 0.1
    popcnt: bool = True
    target: Literal["mlp", "attn", "both"] = "mlp"
    aggressive: bool = False

    def __post_init__(self) -> None:
        require(self.mode in ("binary", "ternary"), f"state-pack {self.mode!r}", "binary, ternary or none")
        require(not self.aggressive or self.mode == "ternary", f"aggressive state-pack {self.mode!r}", "ternary")
        require(self.target in SCOPES, f"state-pack target {self.target!r}", "mlp, attn or both")
        for eps in as_values(self.eps).values():
            require(eps >= 0 and math.isfinite(eps), f"state-pack eps {eps}", "0 or more")
        for rho in as_values(self.rho).values():
            require(0 <= rho <= 1, f"state-pack rho {rho}", "between 0 and 1")
        require(0 <= self.relative <= 1, f"state-pack relative {self.relative}", "between 0 and 1")
        require(0 <= self.hysteresis < 1, f"state-pack hysteresis {self.hysteresis}", "0 or more and below 1")


@dataclass(frozen=True)
class EventDriven:
    """Event-driven inputs: a token sends the inputs that have changed enough since they were last sent.

    y = W x̂, where x̂ has the values last sent: what is not sent is stale, never missing. The first token after a prompt
    sends everything.

    With the target `kv` it is windows of 128 positions of the KV cache, for each KV head, that are computed when they
    have changed enough, and reused else (docs/skipping.md). What is said of inputs below is then said of them.

    Attributes:
        delta_theta: change that is sent, in multiples of the root mean square of the inputs. Of a window: relative
            distance of the query from the one that it was computed with, times its share of the softmax. None: 0.3, and
            0.01 for windows.
        topk: largest fraction of the inputs that a token sends, the largest changes first.
        quorum: the largest changes are sent until they have this share of the energy of all changes; 1: all that pass.
        budget_ms: time for the products of a token, in all matrices (for its attention, in all layers); each sends what
            its share allows, by the time that its inputs took so far. None: any. With a budget results depend on the
            machine's speed.
        stale_beta, stale_lambda: the threshold of an input that was not sent for a tokens is
            delta_theta · stale_beta · exp(-stale_lambda · a).
        age_max: tokens after which an input is sent whatever its change; 0: at once.
        gap_tol: every `gap_every` tokens (0: never) the product is compared with the full one, which replaces it.
            Beyond this relative difference, of one product (one layer's attention), all inputs are computed with for
            `rearm` tokens. None: 0.3, and 0.05 for windows, whose checks begin 1, 3, 7, … tokens after they are new.
        target: mlp, attn or both: matrices, which must be stored by columns; kv: attention over the KV cache, which is
            then ours, with F16 or Q8_0 keys and values.
    """

    delta_theta: float | None = None
    topk: float = 1.0
    quorum: float = 1.0
    budget_ms: float | None = None
    stale_beta: float = 1.0
    stale_lambda: float = 0.02
    age_max: int = 64
    gap_tol: float | None = None
    gap_every: int = 32
    rearm: int = 128
    target: Literal["mlp", "attn", "both", "kv"] = "mlp"

    @property
    def theta(self) -> float:
        """`delta_theta`, or the default of the target."""
        if self.delta_theta is not None:
            return self.delta_theta
        return 0.01 if self.target == "kv" else 0.3

    @property
    def tolerance(self) -> float:
        """`gap_tol`, or the default of the target."""
        if self.gap_tol is not None:
            return self.gap_tol
        return 0.05 if self.target == "kv" else 0.3

    def limits(self) -> dict[str, float]:
        """What the extension calls these options; without the budget."""
        return {
            "theta": self.theta,
            "topk": self.topk,
            "quorum": self.quorum,
            "beta": self.stale_beta,
            "lambda": self.stale_lambda,
            "age_max": self.age_max,
            "gap_every": self.gap_every,
            "gap_tolerance": self.tolerance,
            "rearm": self.rearm,
        }

    def __post_init__(self) -> None:
        require(self.target in (*SCOPES, "kv"), f"event target {self.target!r}", "mlp, attn, both or kv")
        for name in ("topk", "quorum"):
            value = getattr(self, name)
            require(0 < value <= 1, f"event {name} {value}", "a fraction above 0 and at most 1")
        for name in ("delta_theta", "stale_beta", "stale_lambda", "gap_tol", "gap_every", "rearm", "age_max"):
            value = getattr(self, name) or 0.0
            require(value >= 0 and math.isfinite(value), f"event {name} {value}", "0 or more")
        require(self.budget_ms is None or self.budget_ms > 0, f"event budget_ms {self.budget_ms}", "more than 0")


def require(holds: bool, what: str, wanted: str) -> None:
    """Raise ConfigError unless an option is in its range."""
    if not holds:
        raise ConfigError(f"{what} is out of range; give {wanted}")


def as_values(value: float | Values | None) -> Values:
    """{pattern: value} of an option that may be a single number."""
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else {"*": float(value)}


def value_of(group: tuple[str, ...], values: Values, target: str) -> float | None:
    """The last value whose pattern fits a matrix of the group; None without one or outside of `target`."""
    from ..gguf import names  # which needs more than `import seeddelta` may

    scope = names.GROUPS[{"mlp": "ffn", "attn": "attn", "both": "all"}[target]]
    targets = [(name, split[1]) for name in group if (split := names.split_name(name)) is not None]
    if not all(names.role_of_matrix(matrix) in scope for _, matrix in targets):
        return None
    found = None
    for pattern, value in values.items():
        for name, matrix in targets:
            role = names.role_of_matrix(matrix)
            if matrix == pattern or role in names.GROUPS.get(pattern, ()) or fnmatchcase(name, pattern):
                found = value
    return found


def parse_values(text: str, option: str) -> float | dict[str, float]:
    """A number, or PATTERN=NUMBER with commas in between. Raises ConfigError naming the option."""
    try:
        if "=" not in text:
            return float(text)
        parts = (part.partition("=") for part in text.split(","))
        return {pattern.strip() if number else "*": float(number or pattern) for pattern, _, number in parts}
    except ValueError:
        raise ConfigError(f"{option} {text}: write a number, or for example ffn_down=0.5,ffn_gate=0.7") from None
