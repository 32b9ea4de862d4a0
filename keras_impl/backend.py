"""Keras, as `common.backend` sees it, on the backend that KERAS_BACKEND names."""

import keras

if keras.backend.backend() == "tensorflow":
    from keras_impl.on_tensorflow import BACKEND
else:
    from keras_impl.on_one_device import BACKEND

__all__ = ["BACKEND"]
