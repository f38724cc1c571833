"""Questions that a user can ask: train, what-if, advise, reprice, serve, landscape, privacy, calibrate, preview a partition."""
