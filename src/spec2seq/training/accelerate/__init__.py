"""From a checkpoint and a text file to a drafter with its figures, in stages that are done once each."""
