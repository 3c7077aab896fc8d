"""What runs on a node: the supervisor of one run. Standard library only, because it is copied into the run's folder."""
