"""The matrices of a llama model's layers by GPTQ, as llm-compressor does it: uniform grids by groups of columns.

    pip install torch llmcompressor transformers gguf
    python research/peers/gptq.py -m dense.gguf --text wiki.valid.txt --bits 4 --group 32 -o gptq-4-32.gguf

Calibrates on the first chunks of the text, block after block, each behind the quantized ones. The output is a dense
F16 file of the weights that the grids give back; the last line that is printed, JSON, says what codes, scales (16
bits) and zero points (as wide as a code) take. Nothing is downloaded.
"""

from __future__ import annotations

import sys
import tempfile
import time

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier
from network import Network, finish, options_of


def main() -> int:
    options = options_of(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    network = Network(options.model)
    chunks = network.calibration(options.text, options.chunks, options.ctx)
    grid = QuantizationArgs(num_bits=options.bits, strategy="group", group_size=options.group, symmetric=False)
    recipe = GPTQModifier(
        config_groups={"layers": QuantizationScheme(targets=["Linear"], weights=grid)}, ignore=["lm_head"]
    )
    with tempfile.TemporaryDirectory() as folder:  # oneshot reads the configuration of a folder, which GGUF has not
        network.network.config.save_pretrained(folder)
        network.network.config.name_or_path = folder
        begin = time.process_time()
        oneshot(
            model=network.network,
            tokenizer=network.tokenizer,
            dataset=Dataset.from_list([{key: value[0].tolist() for key, value in chunk.items()} for chunk in chunks]),
            recipe=recipe,
            max_seq_length=options.ctx,
            num_calibration_samples=options.chunks,
        )
        seconds = time.process_time() - begin
    finish(network, options, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
