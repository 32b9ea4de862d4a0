"""The network of the usual course script for MNIST."""

from common.spec.layers import Conv, Dense, Dropout, Flatten, MaxPool

NETWORKS = {
    "mnist_dropout": (
        Conv("conv1", 32, 3),
        Conv("conv2", 64, 3),
        MaxPool("pool"),
        Dropout("dropout1", 0.25),
        Flatten("flatten"),
        Dense("dense1", 128),
        Dropout("dropout2", 0.5),
        Dense("dense2"),
    )
}
