"""Questions that a user can ask: train, what-if, advise, reprice, serve, landscape, calibrate, preview a partition."""
