"""How the seeds spell options, put into today's words before the command line is parsed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..settings import Setting

_YES, _NO = ("on", "true", "1", "yes"), ("off", "false", "0", "no")


@dataclass(frozen=True)
class Spelling:
    """What the flags of a command are.

    `old` maps the seeds' name of a flag to it, `switches` are those without a value, `bare` the values of those that
    may stand without theirs and what these may be, `negated` the settings that --no-… switches off where there is no
    such flag.
    """

    old: Mapping[str, str] = field(default_factory=dict)
    switches: frozenset[str] = frozenset()
    bare: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    negated: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Iterable[Setting]) -> Spelling:
        old: dict[str, str] = {}
        switches = {"--quiet", "-q", "--verbose", "-v", "-vv", "--seeddelta", "--help-all", "--help"}
        bare: dict[str, tuple[str, tuple[str, ...]]] = {}
        negated: dict[str, str] = {}
        for setting in settings:
            long = setting.names[0]
            is_switch = setting.kind is bool
            old |= dict.fromkeys(setting.flag.old, long)
            if is_switch:
                switches |= {*setting.names, f"--no-{long.removeprefix('--')}"}
                if not setting.field.default:
                    negated[f"--no-{long.removeprefix('--')}"] = setting.name
            value = "on" if setting.group is not None else setting.flag.bare
            if value is not None:
                bare |= dict.fromkeys(setting.names, (value, tuple(setting.metavar.split("|"))))
        return cls(old, frozenset(switches), bare, negated)

    def expand(self, arguments: list[str], *, interspersed: bool = True) -> list[str]:
        """The arguments in today's words. What follows an option that has a value is left as it is, and so is what
        follows `--`, or (not interspersed) the first argument that is no option."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        if interspersed or end < len(arguments):  # else it is not known yet where they end
            arguments = state_pack(arguments[:end]) + arguments[end:]
        found: list[str] = []
        at = 0
        while at < len(arguments):
            argument = arguments[at]
            at += 1
            if argument == "--" or not argument.startswith("-"):
                found.append(argument)
                if argument == "--" or not interspersed:
                    return found + arguments[at:]
                continue
            name, equals, value = argument.partition("=")
            name = self.old.get(name, name)
            if name in self.switches:
                switch = _switch(name, value) if equals else name
                found += ["--set", f"{self.negated[switch]}=off"] if switch in self.negated else [switch]
            elif equals:
                found.append(f"{name}={value}")
            elif name in self.bare and (at == len(arguments) or arguments[at] not in self.bare[name][1]):
                found.append(f"{name}={self.bare[name][0]}")
            else:
                found += [name, *arguments[at : at + 1]]
                at += 1
        return found


def _switch(name: str, value: str) -> str:
    if value.lower() in _YES:
        return name
    return f"--no-{name.removeprefix('--')}" if value.lower() in _NO else f"{name}={value}"


def state_pack(arguments: list[str]) -> list[str]:
    """`--state-pack` and its options are for the MLP, or for the KV cache: with --state-pack-target=kv, or exact."""
    options = dict(zip(arguments, [*arguments[1:], ""], strict=False))
    options |= {name: value for name, equals, value in (a.partition("=") for a in arguments) if equals}
    if not any(name.startswith("--state-pack") for name in options):
        return arguments
    kv = options.get("--state-pack-target") == "kv" or options.get("--state-pack") == "exact"
    to = "--state-pack-kv" if kv else "--state-pack-mlp"
    popcount = f"{to}-popcount" if kv else f"{to}-popcnt"
    renamed = {
        "--state-pack": to, "--state-pack-eps": f"{to}-eps", "--state-pack-popcnt": popcount,
        "--no-state-pack-popcnt": f"--no-{popcount.removeprefix('--')}",
    }  # fmt: skip
    if not kv:
        renamed["--state-pack-target"] = f"{to}-target"
    found: list[str] = []
    skip = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if skip:
            skip = False
        elif name == "--state-pack-target" and kv:
            skip = not equals
        elif name in renamed:
            found.append(renamed[name] + equals + value)
        else:
            found.append(argument)
    return found
