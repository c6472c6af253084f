"""What a checkpoint's config.json says about single tasks: `prefix` and `task_specific_params`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spec2seq.errors import CheckpointError, OptionError
from spec2seq.generation_options import GenerationOptions
from spec2seq.weights.checkpoint import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Task:
    """One task of a checkpoint.

    Attributes:
        prefix: in front of every text.
        options: below the options of a call, above the checkpoint's.
        is_for_languages: whether the entry is one for two languages.
    """

    prefix: str
    options: GenerationOptions
    is_for_languages: bool


@dataclass(frozen=True)
class TaskSettings:
    """All tasks of a checkpoint by name, and the prefix of those that have none of their own."""

    prefix: str = ""
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: Path) -> TaskSettings:
        """What the folder's config.json says; nothing where there is none.

        Raises:
            CheckpointError: a setting of another type than it must have.
        """
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        prefix, tasks = config.get("prefix") or "", config.get("task_specific_params") or {}
        is_sound = isinstance(prefix, str) and isinstance(tasks, dict)
        if not is_sound or not all(isinstance(task, dict) for task in tasks.values()):
            raise CheckpointError(
                f"{folder / 'config.json'}: prefix must be a string and task_specific_params an object of objects; "
                "restore the file"
            )
        return cls(prefix, tasks)

    def for_task(self, name: str, languages: tuple[object, object]) -> Task:
        """The settings of a task.

        Args:
            name: as given to `pipeline`.
            languages: source and target; where the checkpoint knows a translation between them, it is that task.

        Raises:
            OptionError: the checkpoint asks for something that is not supported.
        """
        of_languages = f"translation_{languages[0]}_to_{languages[1]}"
        key = of_languages if name.startswith("translation") and of_languages in self.tasks else name
        values = dict(self.tasks.get(key, {}))
        prefix = values.pop("prefix", None)
        try:
            options = GenerationOptions.from_mapping(values)
        except OptionError as error:
            raise OptionError(f"in the checkpoint's task_specific_params for {key}: {error}") from None
        return Task(self.prefix if prefix is None else str(prefix), options, key == of_languages and key in self.tasks)
