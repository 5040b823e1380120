"""Instructions a weight of the trellis kernels for one token, counted in the object files' inner loops.

    cmake -S . -B build/kernels -DSEEDDELTA_BUILD_KERNEL_TEST=ON && cmake --build build/kernels
    python benchmarks/count_instructions.py build/kernels avx2 avx512 [--mca llvm-mca --cpu znver4]

`loop` is all of the loop over 16 steps; `vector` are those that need a vector pipe (no loads, broadcasts from memory,
register moves or prefetches); a 512-bit instruction counts as two where pipes are 256 bits wide. `weights/cycle` is the
bound of four such pipes, all of them always busy. Narrow states are those of 12 bits. With --mca the loop is given to
llvm-mca too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

RATES = {(1, 1): "1", (2, 1): "2", (5, 2): "2.5", (3, 1): "3", (4, 1): "4", (5, 1): "5", (6, 1): "6"}
FUNCTION = re.compile(r"^[0-9a-f]+ <.*::(multiply_(?:codes|two)_kv)<(\d), (\d), (true|false)>\(.*>:$")
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)\s*(?:#.*)?$")
PIPES = 4
CLASSES = {  # first match wins
    "load": r"vmovdq.*\(|vpbroadcast[dw]\s.*\(|vbroadcast.*\(|vmovap.*\(",
    "move": r"vmov",
    "multiply": r"vpmul",
    "dot": r"vpmadd|vpdpbusd",
    "shift": r"vps[lr]|vpsh[lr]d",
    "shuffle": r"vpshuf|vperm|vpunpck|vinsert|vpblendvb",
    "logic, add": r"vp(and|or|xor|tern|add|sub)",
}


def functions(object_file: Path) -> dict[tuple[str, int, int, bool], list[tuple[int, str, str]]]:
    """(address, mnemonic, operands) of every kernel."""
    command = ["objdump", "-dC", "--no-show-raw-insn", str(object_file)]
    found: dict[tuple[str, int, int, bool], list[tuple[int, str, str]]] = {}
    code: list[tuple[int, str, str]] | None = None
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(">:"):
            match = FUNCTION.match(line)
            code = None
            if match:
                name, k, v, narrow = match.groups()
                code = found.setdefault((name, int(k), int(v), narrow == "true"), [])
        elif code is not None and (match := LINE.match(line)):
            code.append((int(match[1], 16), match[2], match[3]))
    return found


def inner_loop(code: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """The shortest loop that multiplies."""
    loops = []
    for i, (address, mnemonic, operands) in enumerate(code):
        target = re.match(r"([0-9a-f]+) <", operands)
        if mnemonic.startswith("j") and target and int(target[1], 16) < address:
            body = [line for line in code[: i + 1] if line[0] >= int(target[1], 16)]
            if any(line[1] == "vpmullw" for line in body):
                loops.append(body)
    return min(loops, key=len)


def classify(mnemonic: str, operands: str) -> str:
    text = f"{mnemonic} {operands}"
    return next((name for name, pattern in CLASSES.items() if re.match(pattern, text)), "scalar")


def mca(program: str, cpu: str, body: list[tuple[int, str, str]]) -> str:
    """Cycles an iteration by llvm-mca's model of a processor."""
    text = "\n".join(f"{mnemonic} {operands}" for _, mnemonic, operands in body if mnemonic[0] != "j")
    command = [program, f"-mcpu={cpu}", "-iterations=200", "-all-views=false", "-summary-view"]
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    cycles = re.search(r"Total Cycles:\s+(\d+)", out)
    return f"{int(cycles[1]) / 200:.1f}" if cycles else "?"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("isa", nargs="+", help="instruction sets of x86: avx2, avx512, ...")
    parser.add_argument("--mca", help="path of llvm-mca")
    parser.add_argument("--cpu", default="znver4", help="processor for llvm-mca (default: %(default)s)")
    options = parser.parse_args()
    for isa in options.isa:
        found = functions(next(options.build.rglob(f"isa_{isa}.cpp.o")))
        best = "multiply_two_kv" if any(key[0] == "multiply_two_kv" for key in found) else "multiply_codes_kv"
        print(f"{isa}: a weight" + f"  {'  '.join(CLASSES)}")
        for (k, v), rate in RATES.items():
            for narrow in (True, False):
                body = inner_loop(found[best, k, v, narrow])
                wide = sum(1 for line in body if "zmm" in line[2]) > len(body) / 2
                weights = 16 * v * (32 if wide else 16)
                counts = dict.fromkeys([*CLASSES, "scalar"], 0)
                for _, mnemonic, operands in body:
                    counts[classify(mnemonic, operands)] += 1
                vector = sum(counts[name] for name in ("multiply", "dot", "shift", "shuffle", "logic, add"))
                bound = PIPES * weights / (vector * (2 if wide else 1))
                line = f"  {rate:>3} bits, {'narrow' if narrow else 'wide  '}: loop {len(body) / weights:.3f}, "
                line += f"vector {vector / weights:.3f}, {bound:5.2f} weights/cycle at most;"
                line += "".join(f" {name} {count / weights:.3f}" for name, count in counts.items() if name != "scalar")
                if options.mca:
                    line += f"; {options.cpu}: {weights / float(mca(options.mca, options.cpu, body)):.2f} weights/cycle"
                print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
