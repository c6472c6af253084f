"""The networks. One encoder-decoder serves every family; a configuration tells them apart."""
