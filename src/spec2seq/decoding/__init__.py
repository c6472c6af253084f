"""The draft-verify-accept loop, plain and beam search in it, and what surrounds it."""
