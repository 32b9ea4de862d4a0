"""The network of the usual MNIST example, after LeCun et al. (1998) with more channels and ReLU."""

from common.spec.layers import Conv, Dense, Flatten, MaxPool

NETWORKS = {
    "lenet": (
        Conv("conv1", 20, 5),
        MaxPool("pool1"),
        Conv("conv2", 50, 5),
        MaxPool("pool2"),
        Flatten("flatten"),
        Dense("dense1", 500),
        Dense("dense2"),
    )
}
