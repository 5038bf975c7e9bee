"""Generated protobuf and gRPC stubs, version 1; regenerate with `make proto`."""
