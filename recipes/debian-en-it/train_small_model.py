#!/usr/bin/env python3
"""Train a very small Marian model to draft for a larger one of the same vocabulary, on a CPU, resumable.

    python recipes/debian-en-it/train_small_model.py train.tsv.gz --model models/debian-en-it --out small --minutes 30

The data are lines "source <tab> target", further columns ignored, gzip or plain. Translations made by the large model
itself draft better than human ones. OUT/hf always holds the newest averaged weights as a Hugging Face folder;
OUT/state.pt holds everything needed to go on, and a second run with the same OUT does so.
Needs torch, transformers and sentencepiece.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

Pair = tuple[list[int], list[int]]
IGNORED = -100  # target positions without a loss
TOKENIZER_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json", "tokenizer_config.json")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="training pairs")
    parser.add_argument("--model", type=Path, required=True, help="Marian folder that gives tokenizer and settings")
    parser.add_argument("--out", type=Path, required=True, help="folder for the state and the trained model")
    parser.add_argument("--valid", type=Path, help="pairs for the reported loss")
    parser.add_argument("--minutes", type=float, default=30.0, help="training time of this run (default: 30)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--layers", type=int, default=1, help="layers of the encoder and of the decoder (default: 1)")
    parser.add_argument("--width", type=int, default=128, help="model width (default: 128)")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate (default: 0.002)")
    parser.add_argument("--warm-up", type=int, default=600, help="updates until the peak (default: 600)")
    parser.add_argument("--batch-tokens", type=int, default=1500, help="padded tokens per update (default: 1500)")
    parser.add_argument("--save-minutes", type=float, default=3.0, help="time between saves (default: 3)")
    return parser.parse_args()


def read_pairs(path: Path, tokenizer: MarianTokenizer, longest: int = 160) -> list[Pair]:
    """Token ids of both sides, EOS included; pairs with a longer side are left out."""
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as lines:
        columns = [line.rstrip("\n").split("\t")[:2] for line in lines]
    sources = tokenizer([source for source, _ in columns])["input_ids"]
    targets = tokenizer(text_target=[target for _, target in columns])["input_ids"]
    return [(s, t) for s, t in zip(sources, targets, strict=True) if max(len(s), len(t)) <= longest]


def read_cached_pairs(path: Path, tokenizer: MarianTokenizer, cache_path: Path) -> list[Pair]:
    """As `read_pairs`, kept in a file: tokenizing takes longer than a short resumed run should wait."""
    key = [str(path.resolve()), path.stat().st_size, path.stat().st_mtime]
    if cache_path.exists():
        cached = json.loads(cache_path.read_text())
        if cached["key"] == key:
            return [(source, target) for source, target in cached["pairs"]]
    pairs = read_pairs(path, tokenizer)
    cache_path.write_text(json.dumps({"key": key, "pairs": pairs}))
    return pairs


def make_batches(pairs: list[Pair], max_tokens: int, rng: random.Random) -> list[list[Pair]]:
    """All pairs once, in batches of alike lengths and at most max_tokens padded tokens, in random order."""
    # the noise on the sort key makes other neighbours meet in every epoch
    ordered = sorted(pairs, key=lambda pair: len(pair[1]) + 0.3 * len(pair[0]) + 3 * rng.random())
    batches: list[list[Pair]] = []
    batch: list[Pair] = []
    width = 0
    for pair in ordered:
        width = max(width, *map(len, pair))
        if batch and width * (len(batch) + 1) > max_tokens:
            batches.append(batch)
            batch, width = [], max(map(len, pair))
        batch.append(pair)
    batches.append(batch)
    rng.shuffle(batches)
    return batches


def endless_batches(pairs: list[Pair], max_tokens: int, rng: random.Random) -> Iterator[list[Pair]]:
    while True:
        yield from make_batches(pairs, max_tokens, rng)


def pad(rows: list[list[int]], value: int) -> Tensor:
    """Id lists as one tensor [B, longest]."""
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def compute_loss(model: MarianMTModel, batch: list[Pair], smoothing: float) -> Tensor:
    """Mean cross-entropy in nats per target token, EOS included."""
    config = model.config
    source = pad([source for source, _ in batch], config.pad_token_id)
    target = pad([target for _, target in batch], IGNORED)
    start = [config.decoder_start_token_id]
    decoder_input = pad([start + target[:-1] for _, target in batch], config.pad_token_id)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = model.model(
            input_ids=source,
            attention_mask=(source != config.pad_token_id).long(),
            decoder_input_ids=decoder_input,
            use_cache=False,
        ).last_hidden_state
        is_real = target != IGNORED  # only real positions pay for the projection to the vocabulary
        logits = model.lm_head(states[is_real])
    return functional.cross_entropy(logits.float(), target[is_real], label_smoothing=smoothing)


def build_model(args: argparse.Namespace) -> MarianMTModel:
    """A fresh model with the vocabulary and the special tokens of the large one."""
    large = MarianConfig.from_pretrained(args.model)
    config = MarianConfig(
        vocab_size=large.vocab_size,
        decoder_vocab_size=large.decoder_vocab_size,
        d_model=args.width,
        encoder_layers=args.layers,
        decoder_layers=args.layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=4 * args.width,
        decoder_ffn_dim=4 * args.width,
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=large.share_encoder_decoder_embeddings,
        max_position_embeddings=large.max_position_embeddings,
        pad_token_id=large.pad_token_id,
        eos_token_id=large.eos_token_id,
        bos_token_id=large.bos_token_id,
        decoder_start_token_id=large.decoder_start_token_id,
        forced_eos_token_id=large.forced_eos_token_id,
    )
    model = MarianMTModel(config)
    model.set_attn_implementation("eager")  # on a CPU, 1.8 times the updates of the fused kernel at this width
    for name, parameter in model.named_parameters():
        if "shared" in name or "embed_tokens" in name:
            torch.nn.init.normal_(parameter, std=args.width**-0.5)
        elif parameter.dim() == 2:
            torch.nn.init.xavier_uniform_(parameter)
    return model


@dataclass
class Trainer:
    """Model, running average of its weights and optimizer, with everything needed to go on after a stop."""

    model: MarianMTModel
    args: argparse.Namespace
    step: int = 0
    num_tokens: int = 0
    average: dict[str, Tensor] = field(init=False)
    optimizer: torch.optim.Adam = field(init=False)

    def __post_init__(self) -> None:
        self.clear_pad_row()
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)

    @torch.no_grad()
    def clear_pad_row(self) -> None:
        """Marian models start decoding from a zero embedding, that of the pad token."""
        self.model.get_input_embeddings().weight[self.model.config.pad_token_id] = 0

    def update(self, batch: list[Pair]) -> float:
        """One optimizer step. Returns the smoothed loss."""
        self.step += 1
        self.num_tokens += sum(len(target) for _, target in batch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * min(self.step / self.args.warm_up, math.sqrt(self.args.warm_up / self.step))
        loss = compute_loss(self.model, batch, smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clear_pad_row()
        self.update_average()
        return loss.item()

    @torch.no_grad()
    def update_average(self) -> None:
        # the average follows closely at first and covers about the last 1000 updates later
        weight = max(1e-3, 1 / (1 + self.step / 5))
        for name, parameter in self.model.named_parameters():
            self.average[name].lerp_(parameter, weight)

    def averaged_model(self) -> MarianMTModel:
        """A second model that holds the averaged weights."""
        averaged = MarianMTModel(self.model.config)
        averaged.load_state_dict(self.average, strict=False)  # the tied and the static tables are not parameters
        averaged.tie_weights()
        return averaged.eval()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": dict(self.model.named_parameters()),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "num_tokens": self.num_tokens,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(state["model"][name])
        self.average, self.step, self.num_tokens = state["average"], state["step"], state["num_tokens"]
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self) -> None:
        """Write OUT/state.pt (never half of it) and OUT/hf."""
        state_path = self.args.out / "state.pt"
        part_path = state_path.with_suffix(".part")
        torch.save(self.state_dict(), part_path)
        part_path.replace(state_path)
        folder = self.args.out / "hf"
        self.averaged_model().save_pretrained(folder)
        for name in (*TOKENIZER_FILES, "generation_config.json"):
            if (self.args.model / name).exists():
                shutil.copyfile(self.args.model / name, folder / name)


@torch.no_grad()
def validation_loss(trainer: Trainer, pairs: list[Pair]) -> float:
    """Loss of the averaged weights in nats per token, without smoothing."""
    model, total, num_tokens = trainer.averaged_model(), 0.0, 0
    for batch in make_batches(pairs, trainer.args.batch_tokens, random.Random(0)):
        count = sum(len(target) for _, target in batch)
        total += compute_loss(model, batch, smoothing=0.0).item() * count
        num_tokens += count
    return total / num_tokens


def train(trainer: Trainer, pairs: list[Pair], valid_pairs: list[Pair]) -> None:
    """Train for --minutes, saving now and then, at the end and when interrupted."""
    begin = saved = time.monotonic()
    loss_sum, count = 0.0, 0
    trainer.model.train()
    try:
        for batch in endless_batches(pairs, trainer.args.batch_tokens, random.Random(trainer.step)):
            loss_sum, count = loss_sum + trainer.update(batch), count + 1
            now = time.monotonic()
            is_over = now - begin >= 60 * trainer.args.minutes
            if is_over or now - saved >= 60 * trainer.args.save_minutes:
                trainer.save()
                saved = now
                report(trainer, loss_sum / count, valid_pairs, now - begin)
                loss_sum, count = 0.0, 0
            if is_over:
                return
    except KeyboardInterrupt:
        trainer.save()
        print(f"interrupted and saved at update {trainer.step}")


def report(trainer: Trainer, loss: float, valid_pairs: list[Pair], seconds: float) -> None:
    line = f"{seconds / 60:.1f} min, update {trainer.step}, {trainer.num_tokens / 1e6:.2f} M tokens, loss {loss:.3f}"
    if valid_pairs:
        line += f", validation {validation_loss(trainer, valid_pairs):.3f} nats per token"
    print(line, flush=True)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = MarianTokenizer.from_pretrained(args.model)
    pairs = read_cached_pairs(args.data, tokenizer, args.out / "pairs.json")
    valid_pairs = read_pairs(args.valid, tokenizer) if args.valid else []
    torch.manual_seed(0)
    trainer = Trainer(build_model(args), args)
    state_path = args.out / "state.pt"
    if state_path.exists():
        trainer.load_state_dict(torch.load(state_path, weights_only=True))
    torch.manual_seed(trainer.step)
    num_parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{len(pairs)} pairs, {num_parameters / 1e6:.2f} M parameters, starting at update {trainer.step}", flush=True)
    train(trainer, pairs, valid_pairs)


if __name__ == "__main__":
    main()
