"""FedAvg workload in sfl-sim, pfl-research and Flower, each in a process of its own environment."""
