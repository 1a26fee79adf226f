"""The gRPC side of the frontend. It translates between the protocol's messages and the service (`latebind[grpc]`)."""
