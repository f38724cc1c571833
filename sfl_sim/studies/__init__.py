"""Studies: train, what-if, advise, reprice, serve, landscape, calibrate, partition preview."""
