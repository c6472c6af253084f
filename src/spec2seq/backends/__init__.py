"""Engines that run a verifier."""
