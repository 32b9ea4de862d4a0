"""Other right answers that the checks of model_parallelism must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "numbers of torch's usual kind",
        "next(stage.parameters()).new_empty(len(part), width)",
        "torch.empty(len(part), width)",
    ),
]
