"""Plants mistakes in the ports of three networks, one at a time, and prints what the check says of each.

`python -m tests.port.mistakes FOLDER`, in one process for all mistakes, since TensorFlow takes long to start.
"""

import json
import sys
import tempfile
from pathlib import Path

from common.platform.machine import REPOSITORY
from port.check import make_probe
from port.departure import PortComparison
from port.run import load_module, run_network

EXAMPLE, MANY = REPOSITORY / "port" / "example", REPOSITORY / "tests" / "port" / "many_layers"
EQUAL = REPOSITORY / "tests" / "port" / "equal_branches"
SHAPES = {EXAMPLE: (32, 32, 3), MANY: (9, 9, 3), EQUAL: (9, 9, 3)}
STRIDED = """layers.ZeroPadding2D(1)(x)  # with strides, "same" would pad the far sides only
    x = layers.Conv2D(32, 3, strides=2, activation="relu")(x)"""
NORM = "x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)  # defaults: 0.99, 0.001"
RELU = "    x = layers.ReLU()(x)"
POOLED = "layers.GlobalAveragePooling2D()(x)"
DENSE = '    x = layers.Dense(64, activation="gelu")(x)'
DROPPED = f"x = layers.Dropout(0.25)({POOLED})\n{DENSE}"
DROPPED_LATER = f"x = {POOLED}\n{DENSE}\n    x = layers.Dropout(0.25)(x)"
SUM = "layers.ReLU()(layers.Add()([shortcut, x]))"
POOL = 'layers.AveragePooling2D(3, 2, padding="same")(x)'
SAME_BUT = 'layers.Conv2D(32, 3, strides=2, activation="relu", padding="same")(x)'
# Text of tf.py, what replaces it, and words of the answer.
MISTAKES = {
    EXAMPLE: [
        ("momentum=0.9, ", "", "running statistics of norm1|new statistics): 0.1 in pt.py, 0.01 in tf.py|default"),
        (", epsilon=1e-5", "", "at norm1|epsilon: 1e-05 in pt.py, 0.001 in tf.py|default"),
        (STRIDED, SAME_BUT, "at conv2|padding: ((1, 1), (1, 1)) in pt.py, ((0, 1), (0, 1)) in tf.py|ZeroPadding2D"),
        ("strides=2, ", "", "at conv2|strides: (2, 2) in pt.py, (1, 1) in tf.py"),
        ('"gelu"', "lambda x: keras.activations.gelu(x, True)", "between dense1 and dense2|tanh approximation|default"),
        ('"gelu"', '"relu"', "between dense1 and dense2|pt.py has gelu (exact)(dense1), tf.py relu(dense1)"),
        ('"gelu"', "None", "between dense1 and dense2|tf.py dense1"),
        ("Dropout(0.25)", "Dropout(0.5)", "in dropout|0.25 after conv3 in pt.py, 0.5 after conv2d"),
        (
            "layers.Dropout(0.25)(layers.GlobalAveragePooling2D()(x))",
            "layers.GlobalAveragePooling2D()(x)",
            "in dropout|none",
        ),
        (DROPPED, DROPPED_LATER, "in dropout|0.25 after conv3 in pt.py, 0.25 after dense"),
        ("Dense(num_classes)", 'Dense(num_classes, activation="softmax")', "after dense2|softmax(dense2)|a loss of"),
        ("Dense(64,", "Dense(64, use_bias=False,", "at dense1|only pt.py has a bias"),
        ("Dense(num_classes)", "Dense(num_classes + 1)", "output's shape|(7, 10) in pt.py, (7, 11) in tf.py"),
        (RELU, RELU.replace("ReLU()", "ReLU(6)"), "between norm1 and conv2|tf.py relu6(norm1"),
        ("Dense(64,", "Dense(48,", "kernel 32 x 48|no counterpart|dense1 (dense; kernel 32 x 64"),
        (SUM, "layers.Add()([shortcut, layers.ReLU()(x)])", "between conv3 and dense1|input of conv3 + relu(conv3)"),
        (SUM, "layers.ReLU()(x)", "between conv3 and dense1|tf.py mean of relu(conv3)"),
        ("GlobalAverage", "GlobalMax", "between conv3 and dense1|tf.py maximum of"),
        (RELU, "", "between norm1 and conv2|pt.py has relu(norm1), tf.py norm1"),
        (f"{NORM}\n{RELU}", f"{RELU.strip()}\n    {NORM}", "between conv1 and norm1|tf.py relu(conv1)"),
        ("layers.Conv2D(16, 3,", "layers.Conv2D(16, 3, trainable=False,", "gradients of conv1|not trained in tf.py"),
    ],
    MANY: [
        ("LeakyReLU(0.1)", "LeakyReLU()", "left and depthwise|slope 0.1(right)|slope 0.3(right)|default"),
        ("[right, left]", "[left, right]", "left and depthwise|tf.py tanh(left) beside leaky relu"),
        ('"tanh"', '"sigmoid"', "left and depthwise|sigmoid(left)"),
        ("Average", "Max", "between pointwise and grouped|tf.py maximum over 3 x 3, stride 2"),
        (POOL, POOL.replace('"same")(x)', '"valid")(layers.ZeroPadding2D(1)(x))'), "pointwise and grouped|not counted"),
        ("dilation_rate=2", "dilation_rate=1", "at grouped|dilation: (2, 2) in pt.py, (1, 1) in tf.py"),
        ("groups=2", "groups=1", "no counterpart|grouped (conv; kernel 3 x 3 x 4 x 8"),
        ("GroupNormalization(4,", "GroupNormalization(2,", "at norm (|groups: 4 in pt.py, 2 in tf.py"),
        ("GroupNormalization(4, epsilon=1e-5)", "GroupNormalization(4)", "at norm (|epsilon|default"),
        ("LayerNormalization(epsilon=1e-5)", "LayerNormalization()", "at layer_norm|epsilon|default"),
        ("LayerNormalization(epsilon=1e-5)", "LayerNormalization(epsilon=1.1e-5)", "at layer_norm|epsilon"),
        ("MultiHeadAttention(2, 4)", "MultiHeadAttention(4, 2)", "at attention|heads: 2 in pt.py, 4 in tf.py"),
        ('"silu"', '"relu"', "between norm and up|pt.py has silu(norm), tf.py relu(norm)"),
        ("tokens = tokens + layers", "tokens = layers", "between attention and dense|input of attention + attention"),
        (
            "layers.MultiHeadAttention(2, 4)(tokens, tokens)",
            "layers.LeakyReLU()(layers.MultiHeadAttention(2, 4)(tokens, tokens))",
            "attention and dense|tf.py input of attention + leaky relu with slope 0.3(attention)",
        ),
        ("layers.Dense(num_classes)(layers", "0.5 * layers.Dense(num_classes)(layers", "after dense|0.5 times dense"),
    ],
    EQUAL: [
        (
            'wide = layers.Conv2D(4, 1, activation="relu")(x)',
            'wide = layers.Conv2D(4, 1, activation="relu")(layers.AveragePooling2D(3, 1, "same")(x))',
            "0.wide.0 (|pt.py has the images, tf.py mean over 3 x 3, stride 1",
        ),
    ],
}


def main(folder: Path) -> None:
    from port import pt, tf

    for network, mistakes in MISTAKES.items():
        probe = make_probe(SHAPES[network], 10)
        reference = run_network(pt.TorchNetwork(load_module(network / "pt.py"), probe, 0), probe, None)
        right = (network / "tf.py").read_text()
        for old, new, words in [("", "", "is the network of pt.py"), *mistakes]:
            assert old in right, old
            path = Path(tempfile.mkdtemp(dir=folder)) / "tf.py"
            path.write_text(right.replace(old, new, 1) if old else right)
            port = run_network(tf.KerasNetwork(load_module(path), probe, 0), probe, reference)
            answer = PortComparison(reference, port, "pt.py", "tf.py", probe).lines()[0]
            print(
                json.dumps({"new": new, "answer": answer, "missing": [w for w in words.split("|") if w not in answer]})
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
