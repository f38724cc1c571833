"""Questions of a user: train, advise, reprice, benchmark, landscape, privacy, preview a partition."""
