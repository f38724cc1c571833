"""Questions of a user: train, what-if, advise, reprice, serve, landscape, privacy, calibrate, preview a partition."""
