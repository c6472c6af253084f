"""The distillations that a drafter learns from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spec2seq.errors import DrafterMismatchError
from spec2seq.training.shards import read_manifest, read_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from spec2seq.training.records import DistilledPair
    from spec2seq.weights.fingerprints import VerifierFingerprint


@dataclass(frozen=True)
class PairFolders:
    """Complete distillations of one model, and their manifests."""

    folders: tuple[Path, ...]
    manifests: tuple[Mapping[str, Any], ...]

    @classmethod
    def open(cls, folders: Sequence[Path], verifier: VerifierFingerprint) -> Self:
        """Read the manifests.

        Raises:
            DrafterMismatchError: pairs of another model than `verifier`.
            ModelNotFoundError, CheckpointError: a folder is missing, damaged or not complete.
        """
        manifests = tuple(read_manifest(folder) for folder in folders)
        for folder, manifest in zip(folders, manifests, strict=True):
            _check_origin(manifest, verifier, folder)
        return cls(tuple(folders), manifests)

    @property
    def name(self) -> str:
        """For messages."""
        return ", ".join(map(str, self.folders))

    @property
    def num_pairs(self) -> int:
        return sum(manifest["totals"]["num_pairs"] for manifest in self.manifests)

    @property
    def num_beams(self) -> int:
        """Of the search that gave the outputs, the most where they differ."""
        return max(int(manifest["job"]["options"]["num_beams"]) for manifest in self.manifests)

    def as_job(self) -> object:
        """All that decides what the pairs are, for comparing."""
        jobs = [manifest["job"] for manifest in self.manifests]
        return jobs[0] if len(jobs) == 1 else jobs

    def pairs(self) -> Iterator[DistilledPair]:
        """Of one folder after the other, in the order of their sources.

        Raises:
            CheckpointError: a shard is missing or damaged.
        """
        for folder in self.folders:
            yield from read_pairs(folder)


def _check_origin(manifest: Mapping[str, Any], found: VerifierFingerprint, folder: Path) -> None:
    said = manifest["job"]["model"]
    # compared as JSON, which knows no tuples
    differing = sorted(name for name, value in json.loads(json.dumps(asdict(found))).items() if said.get(name) != value)
    if differing:
        raise DrafterMismatchError(
            f"the pairs in {folder} were distilled from {manifest['origin']['model']}, which is another model "
            f"({', '.join(differing)} differ); a drafter learns from its own verifier: distil with this one"
        )
