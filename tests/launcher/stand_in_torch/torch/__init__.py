"""A stand-in for the little of torch that launcher/node/agent.py uses: real process handling, no tensor, quick to import."""
