"""An HTTP service around a pipeline: many requests in one batch, each with the output that it would have alone."""
