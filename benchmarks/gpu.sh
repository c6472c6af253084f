#!/usr/bin/env bash
# The GPU tests and the GPU figures in one go, for a machine with CUDA. Usage: benchmarks/gpu.sh [OUTPUT_DIR]
# Needs the dev extra and a CUDA build of torch; takes under eight minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
mkdir -p "$out"
python -m pytest -q -m gpu tests
python benchmarks/greedy_vs_transformers.py --device cuda --threads 1 --batch-sizes 1 32 --repeats 5 --out "$out/greedy-gpu.jsonl"
python benchmarks/greedy_vs_transformers.py --device cuda --synthetic base --threads 1 --batch-sizes 1 32 --repeats 5 \
    --out "$out/greedy-gpu.jsonl"
