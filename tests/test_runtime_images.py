"""Images: llama.cpp's library for them decodes in C, past every function of Python."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import seeddelta
from seeddelta.errors import NumericalError

pytest.importorskip("llama_cpp")
mtmd = pytest.importorskip("llama_cpp.mtmd_cpp", reason="built without the library for images", exc_type=Exception)

from llama_cpp import llama_cpp as native  # noqa: E402
from llama_helpers import load_small, with_nan_in  # noqa: E402
from tiny_llama import N_EMBD, N_VOCAB, write_llama  # noqa: E402
from tiny_models import finish  # noqa: E402

SIZE, PATCH, WIDTH = 28, 14, 32  # four patches an image


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision encoder of one layer and random weights, with LLaVA's projector."""
    rng = np.random.default_rng(8)
    path = tmp_path_factory.mktemp("images") / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", False)
    sizes = {"image_size": SIZE, "patch_size": PATCH, "embedding_length": WIDTH, "feed_forward_length": 64}
    sizes |= {"projection_dim": N_EMBD, "block_count": 1, "attention.head_count": 2}
    for name, value in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    shapes: dict[str, tuple[int, ...]] = {
        "v.class_embd": (WIDTH,),
        "v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": ((SIZE // PATCH) ** 2 + 1, WIDTH),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        shapes |= {f"v.blk.0.{name}.weight": (WIDTH, WIDTH), f"v.blk.0.{name}.bias": (WIDTH,)}
    for name in ("v.blk.0.ln1", "v.blk.0.ln2", "v.pre_ln"):
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    shapes |= {"v.blk.0.ffn_up.weight": (64, WIDTH), "v.blk.0.ffn_up.bias": (64,)}
    shapes |= {"v.blk.0.ffn_down.weight": (WIDTH, 64), "v.blk.0.ffn_down.bias": (WIDTH,)}
    shapes |= {"mm.0.weight": (N_EMBD, WIDTH), "mm.0.bias": (N_EMBD,)}
    shapes |= {"mm.2.weight": (N_EMBD, N_EMBD), "mm.2.bias": (N_EMBD,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(0, 0.2, shape).astype(np.float32))
    finish(writer)
    return path


@pytest.fixture(scope="module")
def tiny(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    dense = write_llama(folder / "dense.gguf", smollm2_quantized)
    recipe = seeddelta.Recipe(input=dense, output=folder / "tiny.gguf", bits=4, targets="full", seeddelta_gap=9)
    seeddelta.build(recipe, progress=False)
    return folder / "tiny.gguf"


def look(llm: Any, eye: Path) -> int:
    """A prompt with an image; returns the status of the library."""
    params = mtmd.mtmd_context_params_default()
    params.use_gpu, params.n_threads, params.warmup = False, 1, False
    context = mtmd.mtmd_init_from_file(str(eye).encode(), llm._model.model, params)
    assert context
    pixels = np.arange(SIZE * SIZE * 3, dtype=np.uint8)
    image = mtmd.mtmd_bitmap_init(SIZE, SIZE, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
    chunks = mtmd.mtmd_input_chunks_init()
    text = mtmd.mtmd_input_text()
    text.text = b"The sea " + mtmd.mtmd_default_marker() + b" and the land"
    if hasattr(text, "text_len"):
        text.text_len = len(text.text)
    text.add_special, text.parse_special = True, True
    images = (mtmd.mtmd_bitmap_p_ctypes * 1)(image)
    try:
        assert mtmd.mtmd_tokenize(context, chunks, ctypes.byref(text), images, 1) == 0
        past = native.llama_pos(0)
        return int(mtmd.mtmd_helper_eval_chunks(context, llm._ctx.ctx, chunks, 0, 0, 64, True, ctypes.byref(past)))
    finally:
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(image)
        mtmd.mtmd_free(context)


def logits(llm: Any) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array(native.llama_get_logits_ith(llm._ctx.ctx, -1), (N_VOCAB,)).copy()


def test_a_prompt_with_an_image(tiny: Path, eye: Path) -> None:
    stored = seeddelta.dequantize(tiny, tiny.with_name("stored.gguf"), type="f32", progress=False)
    ours, stock = load_small(tiny, 1), load_small(stored, 1)
    for llm in (ours, stock):
        assert look(llm, eye) == 0
    expected = logits(stock)
    np.testing.assert_allclose(logits(ours), expected, atol=0.05 * np.abs(expected).max())
    assert ours.seeddelta.metrics()["seeddelta.calls"] > 0


def test_an_error_in_it_surfaces_with_the_results(tiny: Path, eye: Path, tmp_path: Path) -> None:
    llm = load_small(with_nan_in(tiny, tmp_path / "nan.gguf", "blk.1.attn_norm.weight"), 1)
    look(llm, eye)
    with pytest.raises(NumericalError, match=r"blk\.1"):
        logits(llm)
