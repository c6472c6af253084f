#!/usr/bin/env python3
"""Copy a model's or a drafter's folder with its weights rounded to bfloat16, ready to be bundled.

python recipes/debian-en-it/bundle_model.py trained/hf models/debian-en-it
python recipes/debian-en-it/bundle_model.py drafters/feature models/debian-en-it-drafter
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from command_line import run_main
from compared_systems import WEIGHTS
from safetensors.torch import load_file, save_file
from train_tokenizer import copy_tokenizer

from spec2seq.weights.drafter_folder import CARD, is_drafter_folder

CONFIG = "config.json"
COPIED = ("generation_config.json", "training.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with model.safetensors, config.json and tokenizer files")
    parser.add_argument("output", type=Path, help="folder to write; files in it are overwritten")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_rounded(arguments.source / WEIGHTS, arguments.output / WEIGHTS)
    if is_drafter_folder(arguments.source):
        for name in (CONFIG, CARD):
            shutil.copy(arguments.source / name, arguments.output / name)
        return
    config = json.loads((arguments.source / CONFIG).read_text(encoding="utf-8"))
    config["dtype"] = "bfloat16"
    (arguments.output / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in COPIED:
        shutil.copy(arguments.source / name, arguments.output / name)
    copy_tokenizer(arguments.source, arguments.output)


def write_rounded(source: Path, output: Path) -> None:
    """The tensors of a file in bfloat16; whole numbers stay as they are."""
    tensors = {
        name: (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in load_file(source).items()
    }
    save_file(tensors, output, metadata={"format": "pt"})


if __name__ == "__main__":
    run_main(main)
