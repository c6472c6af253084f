"""Decoder steps as machine code for x86 processors with AVX-512: int8 weights, exact sums, one call per step."""
