"""A stand-in for the little of torch that launcher/node/agent.py uses: real processes, no tensor, quick to import."""
