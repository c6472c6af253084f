"""Where, when and with what a measurement was made."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("spec2seq", "torch", "transformers", "openvino", "nncf", "ctranslate2", "sacrebleu", "rouge-score", "numpy")
_CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd")
_CPU_INFO = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """The computer, its load now, and the versions of what computes."""
    return {
        "cpu": _cpu_name(),
        "cpu_features": _cpu_features(),
        "cores": os.cpu_count(),
        "load": load(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package.replace("-", "_"): _version(package) for package in PACKAGES},
    }


def load() -> float | None:
    """The load average of the last minute; None where the system tells none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def now() -> str:
    """Date and time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the checkout that this code is run from, marked where files differ from it; None elsewhere."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return None
    try:
        told = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


def available_memory() -> int | None:
    """Bytes that a process may still use; None where the system does not tell."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return None
    lines = [line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("MemAvailable:")]
    return int(lines[0].split()[1]) * 1024 if lines else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_features() -> list[str]:
    flags = (_cpu_info("flags") or _cpu_info("Features") or "").split()
    return [feature for feature in _CPU_FEATURES if feature in flags]


def _cpu_info(key: str) -> str | None:
    if not _CPU_INFO.exists():
        return None
    for line in _CPU_INFO.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
