"""The peer-to-peer overlay: membership, gossip of cached prefixes, routing."""
