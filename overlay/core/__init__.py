"""The sans-IO protocol core: no asyncio, grpc, sockets, clock or global random."""
