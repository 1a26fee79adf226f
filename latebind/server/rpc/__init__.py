"""The gRPC side of the door. It translates between the protocol's messages and the service; needs `latebind[grpc]`."""
