"""The small network that everything is compared with by default."""

from common.spec.layers import Conv, Dense, Flatten, MaxPool

NETWORKS = {
    "cnn": (
        Conv("conv1", 32, 3, padding="same"),
        MaxPool("pool1"),
        Conv("conv2", 64, 3, padding="same"),
        MaxPool("pool2"),
        Flatten("flatten"),
        Dense("dense1", 128),
        Dense("dense2"),
    )
}
