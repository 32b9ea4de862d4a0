"""Keras on other backends than TensorFlow: what keras_torch_impl and keras_jax_impl share. It imports Keras alone."""
