"""The training in Keras: a keras.Model with steps of its own, compile() and fit()."""
