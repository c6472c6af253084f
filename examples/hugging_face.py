"""A model that transformers has loaded, decoded here: two arguments more, the same ids."""

import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import spec2seq

MODEL = Path(__file__).parent.parent / "models" / "debian-en-it"
TEXTS = Path(__file__).with_name("sentences.txt").read_text().splitlines()


def main(model: str | Path = MODEL) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(model, dtype=torch.float32).eval()
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    ours = {"custom_generate": spec2seq.custom_generate, "drafter": "prompt_lookup"}
    outputs = []
    for arguments in ({}, ours):
        loaded.generate(**inputs, num_beams=1, max_new_tokens=2, **arguments)  # the first call prepares things
        start = time.perf_counter()
        outputs.append(loaded.generate(**inputs, num_beams=1, max_new_tokens=64, **arguments))
        print(f"{time.perf_counter() - start:.2f} s")
    print("same" if torch.equal(*outputs) else "DIFFERENT")
    print(*tokenizer.batch_decode(outputs[1], skip_special_tokens=True), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
