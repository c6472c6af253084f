"""The recipe's training: batches, averages, loss, learning rate, and a run that is the same when interrupted."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import train_tokenizer
import train_verifier
from averaging_optimizer import AveragingAdamW
from marian_models import TrainedMarian, keep_pad_row, new_marian
from model_folders import load_trained, write_model
from model_shape import ModelShape
from pair_batches import (
    IGNORED,
    MAX_TOKENS,
    EndlessBatches,
    IdPair,
    group_pairs,
    make_batch,
    read_corpus,
    read_outputs,
)
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer, MarianMTModel, T5ForConditionalGeneration
from translation_trainer import Settings, is_converged

from spec2seq import Pipeline
from spec2seq.errors import InputError, ModelNotFoundError, OptionError
from spec2seq.training.records import DistilledPair
from spec2seq.training.shards import ShardWriter

PAD = PIECES = 30
WORDS = ["package", "library", "files", "reads", "writes", "the", "of", "game", "server", "tools"]


def random_pairs(count: int, seed: int = 0, longest: int = 12) -> list[IdPair]:
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for i in range(count):
        lengths = torch.randint(1, longest, (2,), generator=generator).tolist()
        sides = [[*torch.randint(2, PIECES, (length,), generator=generator).tolist(), 0] for length in lengths]
        pairs.append(IdPair(*sides, is_paragraph=i % 4 == 3))
    return pairs


def test_groups_by_hand() -> None:
    pairs = [IdPair([1] * 2, [1] * 3), IdPair([1] * 5, [1] * 2), IdPair([1], [1] * 2), IdPair([1] * 30, [1] * 4)]
    # by target, then source: 2 (2, 1), 1 (2, 5), 0 (3, 2), 3 (4, 30)
    assert list(group_pairs(pairs, 10, range(4))) == [[2, 1], [0], [3]]
    assert list(group_pairs(pairs, 15, range(4))) == [[2, 1, 0], [3]]
    assert list(group_pairs(pairs, 15, [3, 0])) == [[0], [3]]


def test_a_batch_is_padded_on_the_right() -> None:
    batch = make_batch([IdPair([5, 6, 0], [7, 0]), IdPair([8, 0], [9, 10, 0])], PAD)
    assert batch["input_ids"].tolist() == [[5, 6, 0], [8, 0, PAD]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 0, IGNORED], [9, 10, 0]]


def rows_of(batch: dict[str, torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token != IGNORED) for row in batch["labels"].tolist()]


def test_batches_are_the_same_from_anywhere() -> None:
    pairs = random_pairs(200)
    batches, other = (EndlessBatches(pairs, 60, PAD, count=1000) for _ in range(2))
    in_order = [batches[i] for i in range(120)]
    for i in (100, 3, 119, 0):
        assert rows_of(other[i]) == rows_of(in_order[i])
        assert torch.equal(other[i]["input_ids"], in_order[i]["input_ids"])
    assert all(rows_of(one) != rows_of(next_one) for one, next_one in pairwise(in_order))
    assert rows_of(EndlessBatches(pairs, 60, PAD, 10, seed=1)[0]) != rows_of(in_order[0])


def test_an_epoch_has_every_sentence_once_and_a_fifth_of_the_paragraphs() -> None:
    pairs = [IdPair(pair.source, [100 + i, 0], i % 4 == 3) for i, pair in enumerate(random_pairs(400))]
    batches = EndlessBatches(pairs, 60, PAD, count=1000)
    seen: list[int] = []
    for batch in (batches[i] for i in range(1000)):
        assert max(batch[name].shape[1] for name in ("input_ids", "labels")) * len(batch["labels"]) <= 60
        targets = batch["labels"][:, 0].tolist()
        if set(targets) & set(seen):
            break  # the next epoch
        seen += targets
    assert sorted(i for i in seen if (i - 100) % 4 != 3) == [100 + i for i in range(400) if i % 4 != 3]
    assert 8 <= sum((i - 100) % 4 == 3 for i in seen) <= 34


def test_the_learning_rate_rises_stays_and_falls() -> None:
    settings = Settings(warmup_steps=100, flat_steps=400)
    assert [settings.rate(0, done) for done in (0, 49, 99, 399)] == [0.01, 0.5, 1.0, 1.0]
    assert settings.rate(0, 1599) == pytest.approx(0.5)
    assert settings.rate(1600, 49) == pytest.approx(0.5 * (400 / 1650) ** 0.5)


@pytest.mark.parametrize(
    ("losses", "converged"),
    [
        ([], False),
        ([(500, 4.0), (5000, 4.0)], False),  # not 5000 updates yet
        ([(500, 4.0), (5500, 3.97)], True),
        ([(500, 4.0), (5500, 3.95)], False),
        ([(500, 9.0), (1000, 4.0), (6000, 3.97), (6200, 3.965)], True),
        ([(500, 4.0), (1000, 4.0), (5500, 4.1), (6000, 3.9)], False),
    ],
)
def test_when_training_has_converged(losses: list[tuple[int, float]], converged: bool) -> None:
    assert is_converged(losses) is converged


def test_the_optimizer_is_adamw_with_averages_in_its_state() -> None:
    torch.manual_seed(0)
    mine, plain = nn.Linear(3, 2), nn.Linear(3, 2)
    plain.load_state_dict(mine.state_dict())
    optimizer = AveragingAdamW(mine.parameters(), 0.1, first_step=3)
    other = torch.optim.AdamW(plain.parameters(), lr=0.1, betas=(0.9, 0.98), eps=1e-9, weight_decay=1e-4, fused=True)
    average = mine.weight.detach().clone()
    assert torch.equal(optimizer.average(mine.weight), average)
    for step in range(4, 10):
        inputs = torch.randn(5, 3)
        for model, opt in ((mine, optimizer), (plain, other)):
            opt.zero_grad()
            model(inputs).square().sum().backward()
            opt.step()
        decay = min(0.999, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * mine.weight.detach()
        torch.testing.assert_close(optimizer.average(mine.weight), average)
    assert torch.equal(mine.weight, plain.weight)
    resumed = AveragingAdamW(mine.parameters(), 0.1, first_step=3)
    resumed.load_state_dict(optimizer.state_dict())
    assert torch.equal(resumed.average(mine.bias), optimizer.average(mine.bias))


def tiny_model() -> TrainedMarian:
    torch.manual_seed(0)
    return keep_pad_row(new_marian(ModelShape(16, 1, 2), PIECES))


def test_the_loss_is_that_of_transformers() -> None:
    model = tiny_model().eval()
    reference = MarianMTModel(model.config).eval()
    reference.load_state_dict(model.state_dict())
    batch = make_batch(random_pairs(7), PAD)
    expected = reference(**batch)
    assert torch.allclose(model(**batch).loss, expected.loss, atol=1e-6)
    model.train()
    model.config.dropout = 0.0
    for module in model.modules():
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    smoothed = F.cross_entropy(expected.logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    assert torch.allclose(model(**batch).loss, smoothed, atol=1e-6)


def test_the_pad_row_stays_as_it_is() -> None:
    model = tiny_model()
    rows = model.get_input_embeddings().weight
    assert not rows[PAD].any()
    model(**make_batch(random_pairs(7), PAD)).loss.backward()
    assert rows.grad is not None
    assert not rows.grad[PAD].any()
    assert rows.grad[:PAD].any(-1).all()


def test_a_fresh_model_guesses_evenly() -> None:
    batch = make_batch(random_pairs(50), PAD)
    assert float(new_marian(ModelShape(64, 2, 2), PIECES).eval()(**batch).loss) == pytest.approx(3.9, abs=0.7)


def write_corpus(folder: Path, count: int = 60) -> None:
    """Sentences of a few words, and the same words backwards."""
    generator = torch.Generator().manual_seed(0)
    folder.mkdir()
    for name in ("train", "valid"):
        lines = []
        for _ in range(count):
            words = [WORDS[i] for i in torch.randint(len(WORDS), (4,), generator=generator).tolist()]
            lines.append(f"{' '.join(words)}\t{' '.join(reversed(words))}\tsentence\tx\n")
        file = folder / f"{name}.tsv.gz"
        import gzip

        file.write_bytes(gzip.compress("".join(lines).encode()))


def train_tiny_tokenizer(
    corpus: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, pieces: int = PIECES, family: str = "marian"
) -> None:
    arguments = [str(corpus / "train.tsv.gz"), "-o", str(folder), "--pieces", str(pieces), "--threads", "1"]
    arguments += ["--family", family]
    monkeypatch.setattr(sys, "argv", ["train_tokenizer.py", *arguments])
    train_tokenizer.main()


def train(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    sizes = ("--width", 16, "--layers", 1, "--batch-tokens", 60, "--warmup-steps", 2, "--learning-rate", 0.01)
    pace = ("--eval-steps", 2, "--save-steps", 2)
    monkeypatch.setattr(sys, "argv", ["train_verifier.py", *map(str, (*sizes, *pace, *arguments))])
    train_verifier.main()


def test_a_tokenizer_has_its_special_tokens_where_marian_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import MarianTokenizer

    write_corpus(tmp_path / "corpus")
    train_tiny_tokenizer(tmp_path / "corpus", tmp_path / "tokenizer", monkeypatch)
    vocabulary = json.loads((tmp_path / "tokenizer" / "vocab.json").read_text(encoding="utf-8"))
    assert (vocabulary["</s>"], vocabulary["<unk>"], vocabulary["<pad>"], len(vocabulary)) == (0, 1, PAD, PIECES + 1)
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "tokenizer")
    ids = tokenizer("the game reads files")["input_ids"]
    assert ids[-1] == 0
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the game reads files"
    (data,) = {tuple(pair.source) for pair in read_corpus(tmp_path / "corpus", tmp_path / "tokenizer").train[:1]}
    first = (tmp_path / "corpus" / "train.tsv.gz").read_bytes()
    import gzip

    assert list(data) == tokenizer(gzip.decompress(first).decode().split("\t")[0])["input_ids"]
    capsys.readouterr()
    train_tiny_tokenizer(tmp_path / "corpus", tmp_path / "tokenizer", monkeypatch)
    assert "is complete" in capsys.readouterr().out
    with pytest.raises(InputError, match="use fewer --pieces"):
        train_tiny_tokenizer(tmp_path / "corpus", tmp_path / "other", monkeypatch, pieces=5000)


def test_a_written_model_loads_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path / "corpus")
    train_tiny_tokenizer(tmp_path / "corpus", tmp_path / "tokenizer", monkeypatch)
    model = tiny_model()
    for text in ("first", "second"):  # the second replaces the first
        weights = {name: p.detach() + (text == "second") for name, p in model.named_parameters()}
        write_model(tmp_path / "model", model.config, weights, tmp_path / "tokenizer", {"step": 12})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "model", "tokenizer"]
    loaded, step = load_trained(tmp_path / "model")
    assert step == 12
    assert torch.equal(loaded.get_input_embeddings().weight, model.get_input_embeddings().weight + 1)
    options = Pipeline.from_pretrained(tmp_path / "model", None, backend="torch").options()
    assert (options.num_beams, options.max_length, options.bad_words_ids) == (1, 256, ((PAD,),))
    (tmp_path / "model" / "training.json").unlink()
    with pytest.raises(ModelNotFoundError, match="does not tell how many updates"):
        load_trained(tmp_path / "model")


def test_an_interrupted_training_ends_as_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "corpus")
    train_tiny_tokenizer(tmp_path / "corpus", tmp_path / "tokenizer", monkeypatch)
    data = ("--corpus", tmp_path / "corpus", "--tokenizer", tmp_path / "tokenizer", "--fp32")
    train(monkeypatch, *data, "-o", tmp_path / "whole", "--max-steps", 8)
    capsys.readouterr()
    train(monkeypatch, *data, "-o", tmp_path / "parts", "--max-steps", 4)
    train(monkeypatch, *data, "-o", tmp_path / "parts", "--max-steps", 8)
    printed = capsys.readouterr().out
    whole, parts = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    training = json.loads((tmp_path / "whole" / "model" / "training.json").read_text())
    assert training["step"] == 8
    nlls = [float(line.rpartition(" ")[2]) for line in printed.splitlines() if "eval_nll" in line]
    assert len(nlls) == 4
    assert nlls[-1] == pytest.approx(slow_validation(tmp_path / "whole" / "model", tmp_path / "corpus"), abs=6e-5)
    assert training["validation_nll"] == pytest.approx(nlls[-1], abs=6e-5)
    train(monkeypatch, *data, "-o", tmp_path / "parts", "--max-steps", 8)
    assert "complete: max_steps after 8 updates" in capsys.readouterr().out
    with pytest.raises(OptionError, match=r"another training \(learning_rate is 0.02, was 0.01\)"):
        train(monkeypatch, *data, "-o", tmp_path / "parts", "--learning-rate", 0.02)
    goes_on(monkeypatch, tmp_path, data)


def goes_on(monkeypatch: pytest.MonkeyPatch, folder: Path, data: tuple[object, ...]) -> None:
    """From the model of another training, whose updates count."""
    start = ("--start", folder / "whole" / "model")
    train(monkeypatch, *data, *start, "-o", folder / "further", "--max-steps", 10)
    training = json.loads((folder / "further" / "model" / "training.json").read_text())
    assert training["step"] == 10
    before, after = (load_file(folder / name / "model" / "model.safetensors") for name in ("whole", "further"))
    changes = [float((after[name] - before[name]).abs().max()) for name in before if "layers" in name]
    assert 0 < max(changes) < 0.05  # two updates of at most 0.01


def slow_validation(model: Path, corpus: Path) -> float:
    """Pair by pair, with transformers' own model and loss."""
    network = MarianMTModel.from_pretrained(model, dtype=torch.float32).eval()
    pairs = read_corpus(corpus, model).valid
    nats, count = 0.0, 0
    for group in list(group_pairs(pairs, 60, range(len(pairs))))[::3]:
        for i in group:
            labels = torch.tensor([pairs[i].target])
            with torch.no_grad():
                nats += float(network(torch.tensor([pairs[i].source]), labels=labels).loss) * labels.shape[1]
            count += labels.shape[1]
    return nats / count


def test_a_t5_model_is_trained_where_the_tokenizer_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path / "corpus")
    train_tiny_tokenizer(tmp_path / "corpus", tmp_path / "tokenizer", monkeypatch, family="t5")
    data = read_corpus(tmp_path / "corpus", tmp_path / "tokenizer")
    assert {pair.source[-1] for pair in data.train} == {pair.target[-1] for pair in data.train} == {1}
    arguments = ("--corpus", tmp_path / "corpus", "--tokenizer", tmp_path / "tokenizer", "--fp32")
    train(monkeypatch, *arguments, "-o", tmp_path / "verifier", "--max-steps", 4)
    train(monkeypatch, *arguments, "--start", tmp_path / "verifier" / "model", "-o", tmp_path / "on", "--max-steps", 6)
    model, step = load_trained(tmp_path / "on" / "model")
    assert step == 6
    assert isinstance(model, T5ForConditionalGeneration)
    (result,) = Pipeline.from_pretrained(tmp_path / "on" / "model", None, backend="torch").generate(["the game"])
    source = torch.tensor([[*AutoTokenizer.from_pretrained(tmp_path / "tokenizer")("the game")["input_ids"]]])
    reference = model.eval().generate(source, max_length=256, num_beams=1)[0, 1:].tolist()
    assert result.token_ids == reference


def test_minutes_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path / "corpus")
    train_tiny_tokenizer(tmp_path / "corpus", tmp_path / "tokenizer", monkeypatch)
    data = ("--corpus", tmp_path / "corpus", "--tokenizer", tmp_path / "tokenizer", "--fp32")
    train(monkeypatch, *data, "-o", tmp_path / "short", "--max-steps", 1000, "--minutes", 0)
    assert json.loads((tmp_path / "short" / "model" / "training.json").read_text())["step"] == 1
    assert not (tmp_path / "short" / "finished.json").exists()
    with pytest.raises(InputError, match=r"neither source.spm, .* nor tokenizer.json, .* run train_tokenizer.py first"):
        train(monkeypatch, "--corpus", tmp_path / "corpus", "--tokenizer", tmp_path, "-o", tmp_path / "none")


def test_outputs_of_a_verifier_are_divided(tmp_path: Path) -> None:
    def pair(line: int, length: int = 3, is_degenerate: bool = False) -> DistilledPair:
        return DistilledPair(line, "s", "t", [line, 0], [line] * (length - 1) + [0], 0, "eos", is_degenerate)

    pairs = [pair(1), pair(2), pair(3, MAX_TOKENS + 1), pair(4), pair(5, is_degenerate=True), pair(6), pair(7)]
    writer = ShardWriter(tmp_path / "pairs", {}, {})
    writer.write(0, pairs)
    writer.finish({"num_lines": 7, "num_shards": 1})
    data = read_outputs(tmp_path / "pairs", every=2)
    assert [one.source[0] for one in data.valid] == [1, 4, 7]
    assert [one.source[0] for one in data.train] == [2, 6]
