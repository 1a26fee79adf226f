"""The accelerators of the papers, simulated: LazyBatching's NPU, Ebird's GPU, and the networks on them."""
