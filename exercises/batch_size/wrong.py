"""Mistakes that the checks of batch_size must reject."""

from exercises.checking import Wrong

SPEED = "sum(step_images[WARMUP_STEPS:]) / sum(step_seconds[WARMUP_STEPS:])"

WRONG = [
    Wrong("one rate for all", "BASE_RATE * batch_size / BASE_BATCH_SIZE", "BASE_RATE", "rate"),
    Wrong(
        "the square-root rule",
        "BASE_RATE * batch_size / BASE_BATCH_SIZE",
        "BASE_RATE * (batch_size / BASE_BATCH_SIZE) ** 0.5",
        "rate",
    ),
    Wrong(
        "a rate for whole multiples of 16 alone",
        "BASE_RATE * batch_size / BASE_BATCH_SIZE",
        "BASE_RATE * (batch_size // 16) / (BASE_BATCH_SIZE // 16)",
        "rate",
    ),
    Wrong(
        "a rate with the numbers copied", "BASE_RATE * batch_size / BASE_BATCH_SIZE", "batch_size / 2560", "settings"
    ),
    Wrong("five steps of warm-up, whatever is set", SPEED, SPEED.replace("WARMUP_STEPS", "5"), "settings"),
    Wrong("95 %, whatever is set", "accuracy >= TARGET", "accuracy >= 0.95", "settings"),
    Wrong(
        "the typical step: pauses are no part of the time",
        SPEED,
        "float(np.mean(step_images[WARMUP_STEPS:]) / np.median(step_seconds[WARMUP_STEPS:]))",
        "speed",
    ),
    Wrong("the first steps counted", SPEED, "sum(step_images) / sum(step_seconds)", "speed"),
    Wrong(
        "averaging averages",
        SPEED,
        "float(np.mean(np.array(step_images[WARMUP_STEPS:]) / np.array(step_seconds[WARMUP_STEPS:])))",
        "speed",
    ),
    Wrong(
        "every batch taken for a full one",
        "sum(step_images[WARMUP_STEPS:])",
        "step_images[0] * len(step_images[WARMUP_STEPS:])",
        "speed",
    ),
    Wrong(
        "evaluations counted instead of steps",
        "next((steps for steps, accuracy in history",
        "next((steps for steps, (_, accuracy) in enumerate(history)",
        "steps",
    ),
    Wrong("the last time instead of the first", "in history if", "in reversed(history) if", "steps"),
    Wrong(
        "the end where the target was never reached",
        "if accuracy >= TARGET), None)",
        "if accuracy >= TARGET), history[-1][0])",
        "steps",
    ),
    Wrong(
        "the two ends alone",
        "    slope, fewest = np.polyfit(",
        "    batch_sizes, steps = [batch_sizes[0], batch_sizes[-1]], [steps[0], steps[-1]]\n"
        "    slope, fewest = np.polyfit(",
        "fitted",
    ),
    Wrong(
        "least squares in examples",
        "    slope, fewest = np.polyfit(1 / np.array(batch_sizes), np.array(steps), 1)\n",
        "    fewest, slope = np.polyfit(np.array(batch_sizes), np.array(steps) * np.array(batch_sizes), 1)\n",
        "fitted",
    ),
    Wrong("a line over batch sizes", "1 / np.array(batch_sizes)", "np.array(batch_sizes)", "critical"),
    Wrong("the slope for the batch size", "float(slope / fewest)", "float(slope)", "critical"),
]
