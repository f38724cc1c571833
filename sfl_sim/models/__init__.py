"""Networks that can be cut at any layer, their replicas, and the priced steps that train them."""
