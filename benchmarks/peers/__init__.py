"""FedAvg workload in sfl-sim and its peers, each in a process of its own environment."""
