"""Settings of KWTA, StatePack in the MLP and events: which inputs a token computes with (docs/guide/skipping.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from .patterns import Values, parse_values
from .tree import Flag, Settings, Whole

# Within 2% of SmolLM2-135M's perplexity (research/skipping/README.md). Query, key and value stay whole: 0.7 cost 3%.
DEFAULT_KEEP: Values = {"ffn_down": 0.65, "ffn_gate": 0.85, "ffn_up": 0.85, "attn_output": 0.75}

Fraction = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(ge=0)]
_ByMatrix = BeforeValidator(parse_values)


class Kwta(Settings):
    """KWTA: of the inputs of a matrix only those with the largest scores are computed with."""

    k: Annotated[Fraction | dict[str, Fraction] | None, _ByMatrix, Flag(metavar="K")] = Field(
        default=None,
        description="Fraction of the units (inputs, or blocks) that is kept. One for all, or "
        "ffn_down=0.5,ffn_gate=0.7,blk.0.*=1 by target (ffn_down, attn, ffn) or shell pattern of names; the last that "
        "fits holds, matrices without one are computed whole. Default: "
        + ",".join(f"{name}={keep}" for name, keep in DEFAULT_KEEP.items()) + ".",
    )  # fmt: skip
    k_abs: Annotated[int, Flag(metavar="N")] = Field(
        default=0, ge=0, description="Number of units that is kept, instead; 0: the fraction holds."
    )
    temperature: Annotated[float, Flag(names=("--kwta-temp",))] = Field(
        default=0.0,
        ge=0,
        description="Temperature of the softmax that --kwta-renorm divides by, in multiples of the root mean square of "
        "the inputs; 0: none. The order of the scores, and so what is kept, does not depend on it.",
    )
    duty: Annotated[int, Flag()] = Field(
        default=1, ge=1, description="Choose for every N-th token; the others are computed whole."
    )
    target: Annotated[Literal["mlp", "attn", "both", "kv"], Flag()] = Field(
        default="both",
        description="Matrices whose inputs are chosen; or (kv) positions of the KV cache: K is then the budget of "
        "StatePack's selection of keys, and their values are those that are read.",
    )
    gap_tol: Annotated[float | None, Flag(metavar="G")] = Field(
        default=None,
        gt=0,
        description="Tune K, and then duty, while the model generates: every --kwta-gap-every tokens a product is "
        "compared with the full one, and K is raised or lowered so that the relative error, mean over the tokens, "
        "comes to between half of G and G. Default: K stays.",
    )
    gap_every: Annotated[int, Flag()] = Field(
        default=32, ge=1, description="Tokens that are chosen for between comparisons of --kwta-gap-tol."
    )
    block: Annotated[Literal[1, 16, 32, 64], Whole, Flag()] = Field(
        default=1, description="Inputs that are kept or skipped together. Blocks are ranked by their energy."
    )
    score: Annotated[Literal["magnitude", "wina"], Flag()] = Field(
        default="wina", description="|x|, or |x| times the norm of the input's weights (Chen et al. 2025)."
    )
    select: Annotated[Literal["topk", "threshold"], Flag()] = Field(
        default="topk", description="Exactly K, or what is above the thresholds of --kwta-file, one comparison."
    )
    renormalize: Annotated[bool, Flag(names=("--kwta-renorm",))] = Field(
        default=False, description="Divide what is kept by its share."
    )
    file: Annotated[Path | None, Flag()] = Field(
        default=None, description="Fractions and thresholds a matrix, from seeddelta sparsify, in place of K and score."
    )

    @model_validator(mode="after")
    def _check_together(self) -> Kwta:
        conflicts = (
            (self.k is not None and self.k_abs, "kwta k and k_abs both say how many units are kept"),
            (self.file is not None and (self.k is not None or self.k_abs), "the kwta file has the fractions"),
            (self.select == "threshold" and self.file is None, "thresholds need a kwta file (seeddelta sparsify)"),
            (self.select == "threshold" and self.block > 1, "thresholds are for single units, not for blocks"),
            (self.gap_tol is not None and (self.k_abs or self.select == "threshold"), "a gap tunes the fraction k"),
            (
                self.target == "kv" and (self.file is not None or self.gap_tol is not None or isinstance(self.k, dict)),
                "of the KV cache kwta takes one k or k_abs, no file and no gap",
            ),
        )
        for conflict, what in conflicts:
            if conflict:
                raise ValueError(f"{what}; leave one of the two out")
        return self


class StatePackMLP(Settings):
    """StatePack: a bitmap of the inputs that are not nearly zero; the others are skipped, and what is kept is exact."""

    mode: Annotated[
        Literal["binary", "ternary"],
        Flag(
            names=("--state-pack-mlp",),
            metavar="binary|ternary|none",
            bare="binary",
            off="none",
        ),
    ] = Field(
        default="binary",
        description="Skip inputs of the MLP that are nearly zero, by one bitmap, or by one of positive and one of "
        "negative inputs (the same units pass).",
    )
    eps: Annotated[Positive | dict[str, Positive], _ByMatrix, Flag(metavar="EPS")] = Field(
        default=1e-4, description="Inputs of this magnitude or less are skipped. A number, or PATTERN=NUMBER,…"
    )
    relative: Annotated[float, Flag()] = Field(
        default=0.0, ge=0, le=1, description="And those below this share of the moving average of what passes."
    )
    rho: Annotated[Share | dict[str, Share], _ByMatrix, Flag(metavar="RHO")] = Field(
        default=0.15,
        description="Share of inputs that pass, on a moving average of about 10 tokens, above which the bitmap is not "
        "used. A number, or PATTERN=NUMBER,…",
    )
    hysteresis: Annotated[float, Flag()] = Field(
        default=0.1, ge=0, lt=1, description="It is used again when the share falls below rho · (1 - hysteresis)."
    )
    popcnt: Annotated[bool, Flag()] = Field(
        default=True, description="Count bits with vector instructions (VPOPCNTDQ, PSHUFB, CNT), else word by word."
    )
    target: Annotated[Literal["mlp", "attn", "both"], Flag()] = Field(
        default="mlp", description="Matrices whose inputs have a bitmap."
    )
    aggressive: Annotated[bool, Flag()] = Field(
        default=False,
        description="While the bitmap is used, multiply the signs of the inputs by ternary weights, with popcount (Li "
        "et al. 2016, Ternary Weight Networks; needs ternary and --columns f16). It makes a model useless.",
    )

    @model_validator(mode="after")
    def _check_together(self) -> StatePackMLP:
        if self.aggressive and self.mode != "ternary":
            raise ValueError(f"aggressive state-pack multiplies signs, and {self.mode} has none; use ternary")
        return self


class EventDriven(Settings):
    """Event-driven inputs: a token sends the inputs that have changed enough since they were last sent.

    y = W x̂, where x̂ has the values last sent: what is not sent is stale, never missing. The first token after a prompt
    sends everything.

    With the target `kv` it is windows of 128 positions of the KV cache, for each KV head, that are computed when they
    have changed enough, and reused else (docs/guide/skipping.md). What is said of inputs is then said of them.
    """

    delta_theta: Annotated[Positive | dict[str, Positive] | None, _ByMatrix, Flag(metavar="T")] = Field(
        default=None,
        description="Change that is sent, in multiples of the root mean square of the inputs. One for all, or "
        "PATTERN=T,…; what no pattern fits is computed whole. Of a window: relative "
        "distance of the query from the one that it was computed with, times its share of the softmax. Default: 0.15, "
        "and 0.01 for kv.",
    )
    topk: Annotated[Fraction | dict[str, Fraction], _ByMatrix, Flag(metavar="K")] = Field(
        default=1.0,
        description="Largest fraction of the inputs that a token sends, largest changes first. One, or PATTERN=K,…",
    )
    block: Annotated[Literal[1, 16, 32, 64], Whole, Flag()] = Field(
        default=1, description="Inputs that are sent together, by the norm of their change."
    )
    quorum: Annotated[float, Flag()] = Field(
        default=1.0, gt=0, le=1,
        description="The largest changes are sent until they have this share of the energy of all changes.",
    )  # fmt: skip
    budget_ms: Annotated[float | None, Flag(metavar="MS")] = Field(
        default=None,
        gt=0,
        description="Time for the products of a token, in all matrices (kv: for its attention, in all layers); results "
        "then depend on the machine's speed. Default: any.",
    )
    stale_beta: Annotated[float, Flag()] = Field(
        default=1.0,
        ge=0,
        description="The threshold of an input that was not sent for a tokens is T · beta · exp(-lambda · a).",
    )
    stale_lambda: Annotated[float, Flag()] = Field(
        default=0.02, ge=0, description="How fast that threshold falls with the tokens."
    )
    age_max: Annotated[int, Flag()] = Field(
        default=64, ge=0, description="Tokens after which an input is sent whatever its change; 0: at once."
    )
    gap_tol: Annotated[float, Flag(metavar="G")] = Field(
        default=0.05,
        ge=0,
        description="Relative error of one product (kv: of one layer) beyond which nothing is skipped for "
        "--event-rearm tokens; for good, when it is one of the first 8 checks, which come 1, 3, 7, … tokens after the "
        "start.",
    )
    gap_every: Annotated[int, Flag()] = Field(
        default=32, ge=0, description="Tokens between comparisons with the full product, which replaces it; 0: never."
    )
    rearm: Annotated[int, Flag()] = Field(
        default=128, ge=0, description="Tokens for which nothing is skipped after a failed comparison."
    )
    target: Annotated[Literal["mlp", "attn", "both", "kv"], Flag()] = Field(
        default="mlp",
        description="Matrices whose inputs are events, which must be by columns; or (kv) windows of the KV cache in "
        "attention, which is then ours, with keys and values of F16, BF16, Q8_0 or Q4_0.",
    )

    @model_validator(mode="after")
    def _check_together(self) -> EventDriven:
        if self.target == "kv" and (isinstance(self.delta_theta, dict) or isinstance(self.topk, dict)):
            raise ValueError("patterns are of matrices; events of kv take one delta_theta and one topk")
        if self.target == "kv" and self.block > 1:
            raise ValueError("block is of inputs; leave it out with events of kv, whose windows have 128 positions")
        return self
