"""Grammars that end llama.cpp, or that it never ends with, are refused before it reads them."""

from __future__ import annotations

import pytest
from seeddelta.errors import RequestError
from seeddelta.serve.grammar import check_grammar

llama_grammar = pytest.importorskip("llama_cpp.llama_grammar")

GOOD = {name: text for name, text in vars(llama_grammar).items() if name.endswith("_GBNF")} | {
    "words": 'root ::= "yes" | "no"',
    "characters": 'root ::= "é" "😀" [α-ω]+ [^\\]a-] "\\"" [\\x41-\\U0001F600]',
    "space": 'root ::= ws "a" # a comment "\n\nws ::= ([ \\t\\n] ws)?\r\n',
    "times": 'root ::= a{2,5} a{3} a{2,} "b"? .\na ::= "x" | "y"',
    "tokens": "root ::= <[5]> !<[6]> <think>",
    "deep": "root ::= " + "(" * 90 + '"a"' + ")" * 90,
    "long chain": "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(5000)) + 'r5000 ::= "a"',
    "many optional": "root ::= " + " ".join(f'"{i}"?' for i in range(200)),
}
CHAIN = "".join(f"r{i} ::= r{i + 1}\n" for i in range(9000)) + 'r9000 ::= "a"'
TWICE = "".join(f"r{i} ::= r{i + 1} | r{i + 1}\n" for i in range(40)) + 'r40 ::= "a"'
BAD = {
    "root ::= " + "(" * 20000 + '"a"' + ")" * 20000: "nested",
    'root ::= root "a" | "b"': "begins with itself",
    'root ::= a\na ::= ("x" | b)\nb ::= a "y"': "begins with itself",
    # llama.cpp does not see that c may be empty, and takes ever more memory
    'root ::= b root "x"\nb ::= c c\nc ::= ': "begins with itself",
    'root ::= [] [^] root "x"': "begins with itself",  # an empty class takes nothing, not no character
    'root ::= (""*)* "a"': "nothing to repeat|empty",
    'root ::= (a a)*\na ::= "x"?': "may be empty",
    'root ::= "a"{1,100000}': "repeats",
    'root ::= "a"{99999999999999999999999}': "repeats",
    'root ::= "a"{5,2}': "less than its least",  # 2^64 - 3 rules
    'root ::= "' + "a" * 60000 + '"{2000}': "too long",
    'root ::= x{0,2000}\nx ::= y{0,2000}\ny ::= "a"?': "too many ways",
    f"root ::= r0\n{CHAIN}": "too many ways",
    f"root ::= r0\n{TWICE}": "too many ways",
    f'root ::= "x" r0\n{TWICE}': "too many ways",
    "root ::= " + " | ".join(['"a"'] * 9000): "too many ways",
    'root ::= "a"' + " " * (1 << 19): "characters",
    'r ::= "a"': "no rule named root",
    "": "no rule named root",
    "root ::= x": "not defined",
    "root := x": "does not begin",
    "root ::= [a": "cannot be read",
    'root ::= "a': "cannot be read",
    "root ::= *": "nothing to repeat",
    "root ::= (": "open",
    "root ::= )": "closed",
    'root ::= (\nx ::= "a"': "open",
    'root ::= "a\0"': "NUL",
}


@pytest.mark.parametrize("name", GOOD)
def test_grammars_that_are_taken(name: str) -> None:
    check_grammar(GOOD[name])


@pytest.mark.parametrize("number", range(len(BAD)))
def test_grammars_that_are_refused(number: int) -> None:
    text, reason = list(BAD.items())[number]
    with pytest.raises(RequestError, match=f"^grammar: .*({reason})"):
        check_grammar(text)


RUNS = {"=": 32, " ": 64, "(": 4}


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "=" root "b" | "=" root "c" | ""',
        'root ::= [^x] root "b" | . root "c" | ""',
        'root ::= "<" (" " inner) ">"\ninner ::= "" | (" " | "\\x20") (inner "a" | inner{1,2} "b")',
    ],
)
def test_grammars_that_grow_with_each_character(text: str) -> None:
    """llama.cpp takes 4 times as long for each one more; a token of 32 takes for ever."""
    check_grammar(text)
    with pytest.raises(RequestError, match=r"ever more ways when '[= ]' is repeated"):
        check_grammar(text, RUNS)


@pytest.mark.parametrize("name", GOOD)
def test_grammars_that_do_not_grow(name: str) -> None:
    check_grammar(GOOD[name], RUNS)


def test_a_grammar_that_grows_with_characters_that_no_token_repeats() -> None:
    check_grammar('root ::= term | term "+" root\nterm ::= "(" root ")" | [0-9]+', RUNS)
