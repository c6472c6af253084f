#!/usr/bin/env bash
# The GPU tests and the GPU figures in one go, for a machine with CUDA. Usage: benchmarks/gpu.sh [OUTPUT_DIR]
# Needs the dev extra and a CUDA build of torch; takes under eight minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results/gpu}
mkdir -p "$out"
python -m pytest -q -m gpu tests
spec2seq bench --device cuda --threads 1 --batch-sizes 1,32 --lines 64 --no-memory --out "$out/debian-en-it"
spec2seq bench --device cuda --threads 1 --synthetic base --no-memory --out "$out/base"
