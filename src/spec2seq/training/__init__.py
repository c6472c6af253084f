"""Making drafters: what the verifier says to a text file, and networks trained on that."""
