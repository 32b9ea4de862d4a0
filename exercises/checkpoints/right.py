"""Other right answers that the checks of checkpoints must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "refusing with an assertion",
        "    network.load_state_dict({name",
        "    assert {name.removeprefix(PREFIX) for name in weights} == set(network.state_dict())\n"
        "    network.load_state_dict({name",
    ),
    Right(
        "to where the network is",
        '    states = torch.load(path, map_location="cpu", weights_only=True)\n',
        "    states = torch.load(path, map_location=next(network.parameters()).device)\n",
    ),
]
