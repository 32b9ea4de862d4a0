"""TensorFlow's profiler, which Keras's TensorBoard callback starts too."""

from tf_impl.profiling import TensorFlowProfiler as TensorFlowProfiler
