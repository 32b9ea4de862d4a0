"""The networks: a folder for each, with the same network for PyTorch, Keras and Flax NNX, and its layers as data."""
