"""Exact speculative decoding for encoder-decoder Transformers."""
