"""From a scenario to what runs: data, clients, network, method, losses, servers."""
