"""How the seeds spell options, put into today's words before the command line is parsed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..errors import ConfigError
from ..settings import Setting

# llama.cpp's options for GPUs, which its users type
_GPU = ("-ngl", "--gpu-layers", "--n-gpu-layers", "--n_gpu_layers")
_YES, _NO = ("on", "true", "1", "yes"), ("off", "false", "0", "no")


@dataclass(frozen=True)
class Spelling:
    """What the flags of a command are.

    `old` maps the seeds' name of a flag to it, `switches` are those without a value, `bare` the values of those that
    may stand without theirs and what these may be, `negated` the settings that --no-… switches off where there is no
    such flag, `places` are the flags of what may also be given by its place.
    """

    old: Mapping[str, str] = field(default_factory=dict)
    switches: frozenset[str] = frozenset()
    bare: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    negated: Mapping[str, str] = field(default_factory=dict)
    places: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Iterable[Setting]) -> Spelling:
        old: dict[str, str] = {}
        switches = {"--quiet", "-q", "--verbose", "-v", "-vv", "--seeddelta", "--help-all", "--help", "-h"}
        bare: dict[str, tuple[str, tuple[str, ...]]] = {}
        negated: dict[str, str] = {}
        places: set[str] = set()
        for setting in settings:
            if setting.flag.argument:
                places |= {*setting.names}
                continue
            long = setting.names[0]
            is_switch = setting.kind is bool
            old |= dict.fromkeys(setting.flag.old, long)
            if is_switch:
                switches |= {*setting.names, f"--no-{long.removeprefix('--')}"}
                if not setting.field.default:
                    negated[f"--no-{long.removeprefix('--')}"] = setting.name
            value = "on" if setting.group is not None else setting.flag.bare
            if value is not None:
                fitting = tuple(setting.metavar.split("|")) if setting.flag.fits is None else (setting.flag.fits,)
                bare |= dict.fromkeys(setting.names, (value, fitting))
        return cls(old, frozenset(switches), bare, negated, frozenset(places))

    def expand(self, arguments: list[str], *, interspersed: bool = True) -> list[str]:
        """The arguments in today's words. What follows an option that has a value is left as it is, and so is what
        follows `--`, or (not interspersed) the first argument that is no option. Raises ConfigError for -ngl."""
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
            if name in _GPU:
                raise ConfigError(f"{name}: seeddelta computes on the CPU; leave it out")
            name = self.old.get(name, name)
            if name in self.places and (equals or at < len(arguments)):
                found.append(_as_place(value if equals else arguments[at]))
                at += not equals
            elif name in self.switches:
                switch = _switch(name, value) if equals else name
                found += ["--set", f"{self.negated[switch]}=off"] if switch in self.negated else [switch]
            elif equals:
                found.append(f"{name}={value}")
            elif name in self.bare and not self._is_value(name, arguments[at : at + 1]):
                found.append(f"{name}={self.bare[name][0]}")
            else:
                found += [name, *arguments[at : at + 1]]
                at += 1
        return found

    def _is_value(self, name: str, following: list[str]) -> bool:
        return any(fnmatchcase(word, pattern) for word in following for pattern in self.bare[name][1])


def _as_place(value: str) -> str:
    return f"./{value}" if value.startswith("-") else value  # not to be taken for an option


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
