"""Drafters: things that propose a block of next tokens for the verifier to check."""
