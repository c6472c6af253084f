#!/usr/bin/env python3
"""Copy a Hugging Face folder with its weights rounded to bfloat16, ready to be bundled.

python recipes/debian-en-it/bundle_model.py trained/hf models/debian-en-it
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from command_line import run_main
from safetensors.torch import load_file, save_file
from train_tokenizer import copy_tokenizer

COPIED = ("generation_config.json", "training.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with model.safetensors, config.json and tokenizer files")
    parser.add_argument("output", type=Path, help="folder to write; files in it are overwritten")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    weights = load_file(arguments.source / "model.safetensors")
    rounded = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(rounded, arguments.output / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((arguments.source / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = "bfloat16"
    (arguments.output / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in COPIED:
        shutil.copy(arguments.source / name, arguments.output / name)
    copy_tokenizer(arguments.source, arguments.output)


if __name__ == "__main__":
    run_main(main)
