"""Text for fairseq's models: dictionaries of symbols, how text is cut into them, and both together as a tokenizer."""
