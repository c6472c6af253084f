"""When outputs that differ say the same nevertheless. Imports no torch, so that --help stays fast."""

# One product over many rows is not bit-equal to many products over one: in fp32, differences where the two best scores
# are closer than this many nats are ties, not mistakes.
FP32_TOLERANCE = 1e-4
