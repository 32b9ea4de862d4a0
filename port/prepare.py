"""Writes what training needs to know of a network of the user's, see `common/spec/own_network.py`, which starts it.

python -m port.prepare FOLDER INTO --image-shape H W C --num-classes N [--frameworks tf jax] [--seed S]
"""

import argparse
import sys
from pathlib import Path

from common.platform.errors import UserError
from common.platform.files import write_json_model, write_safetensors
from common.spec.own_network import NETWORK_FILE, NETWORK_FILES, Prepared, layout_file, weights_file
from port.check import make_probe, run_all
from port.departure import PortComparison
from port.layers import STATISTICS
from port.network import with_full_names
from port.run import PortResult, shapes_of_calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("--image-shape", type=int, nargs=3, required=True)
    parser.add_argument("--num-classes", type=int, required=True)
    parser.add_argument("--frameworks", choices=[*NETWORK_FILES], nargs="+", default=[])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    first = next(name for name, file in NETWORK_FILES.items() if (given.folder / file).is_file())
    probe = make_probe(tuple(given.image_shape), given.num_classes)
    try:
        results = run_all(given.folder, list(dict.fromkeys([first, *given.frameworks])), probe, given.seed)
    except UserError as error:
        sys.exit(str(error))
    reference = results[first]
    for name, result in results.items():
        comparison = PortComparison(reference, result, NETWORK_FILES[first], NETWORK_FILES[name], probe)
        if name != first and comparison.departure:
            shape = " ".join(map(str, given.image_shape))
            options = f"--network {given.folder} --image-shape {shape} --num-classes {given.num_classes}"
            sys.exit(f"{comparison.lines()[0]} `python -m port {options}` shows every layer.")
        check_trainable(NETWORK_FILES[name], result)
        write_safetensors(given.into / layout_file(name, "layers"), result.places_in_layers)
        write_safetensors(given.into / layout_file(name), result.places)
    if reference.output.ndim != 2:
        sys.exit(f"{NETWORK_FILES[first]}: returns shape {reference.output.shape}; training needs (images, outputs)")
    parameters, initial = shapes_of_calls(reference.calls), with_full_names(reference.initial)
    write_safetensors(given.into / weights_file(given.seed), {name: initial[name] for name in parameters})
    prepared = Prepared(
        parameters=parameters,
        flops_per_image=flops_per_image(reference, len(probe.images)),
        drops=bool(reference.dropouts),
        has_loss=reference.has_loss,
        num_outputs=reference.output.shape[1],
    )
    write_json_model(given.into / NETWORK_FILE, prepared)


def check_trainable(file: str, result: PortResult) -> None:
    """Ends with a line if training would not be what the file says."""
    for call in result.calls:
        if missing := call.weights.keys() - call.gradients.keys() - {*STATISTICS}:
            sys.exit(f"{file}: {call.layer} has a {min(missing)} that is not trained")


def flops_per_image(result: PortResult, count: int) -> int:
    """Floating-point operations of the kernels in one forward pass over one image of `count`.

    A multiplication and an addition count as two, as in torch.utils.flop_counter.
    """
    flops = 0
    for call in result.calls:
        for kind, array in call.weights.items():
            if "kernel" in kind and call.kind != "embedding":
                seen = call.input if call.output is None or call.kind == "conv transpose" else call.output
                flops += 2 * array.size * (seen.size // seen.shape[-1]) // count
    return flops


if __name__ == "__main__":
    main()
