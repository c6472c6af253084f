"""What every test gets: one thread, no luck from the run before, and nothing of the user's."""

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Engines are kept for the session only. "auto" means torch: converting hundreds of tiny models would take long."""
    os.environ["SPEC2SEQ_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["SPEC2SEQ_BACKEND"] = "torch"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
