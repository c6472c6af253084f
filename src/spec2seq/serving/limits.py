"""What one request may ask of the service, and all of them together. Every default is stated here."""

from __future__ import annotations

from dataclasses import dataclass

from spec2seq.errors import OptionError
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS

# A JSON string may take twelve bytes for one character (two escapes of six); the rest is for the other fields.
BYTES_PER_CHARACTER, BYTES_BESIDES = 12, 65_536


@dataclass(frozen=True)
class Limits:
    """Limits of the service.

    Attributes:
        max_queue: requests that wait for the model; one more is refused.
        max_input_chars: characters of all texts of a request.
        max_texts: texts in a list.
        max_pieces: lines and sentences of all texts; each may become a request to the model.
        max_output_tokens: tokens that may be asked for per line or sentence.
        max_draft_tokens: tokens that may be drafted per round.
        max_beams: beams, samples or alternatives per text.
        max_top_beta: how far down the model's ranking relaxed acceptance may go.
        max_batch_tokens: rows x (source + target) tokens that the model works on at a time; a single piece is always
            let in.
        timeout: seconds from the arrival of a request to its end.
    """

    max_queue: int = 128
    max_input_chars: int = 20_000
    max_texts: int = 64
    max_pieces: int = 1000
    max_output_tokens: int = 1024
    max_draft_tokens: int = 32
    max_beams: int = 8
    max_top_beta: int = 25
    max_batch_tokens: int = DEFAULT_BATCH_TOKENS
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                flag = "--" + name.replace("_", "-")
                raise OptionError(f"{flag} {value} is not allowed: use a number above 0")

    @property
    def max_body_bytes(self) -> int:
        """Size of the largest body that could hold a request within the other limits."""
        return BYTES_PER_CHARACTER * self.max_input_chars + BYTES_BESIDES
