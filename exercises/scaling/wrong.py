"""Mistakes that the checks of scaling must reject."""

from exercises.checking import Wrong

WRONG = [
    Wrong("means, which one slow round moves", "np.median(samples)", "np.mean(samples)", "median"),
    Wrong(
        "the second of the rounds, however many there are", "float(np.median(samples))", "sorted(samples)[1]", "median"
    ),
    Wrong(
        "against the first entry instead of one device",
        "seconds[1] / found",
        "next(iter(seconds.values())) / found",
        "faster",
    ),
    Wrong("the best round of each", "np.median(samples)", "np.min(samples)", "median"),
    Wrong("against the slowest instead of one device", "seconds[1] / found", "max(seconds.values()) / found", "faster"),
    Wrong("upside down", "seconds[1] / found", "found / seconds[1]", "faster"),
    Wrong("speed-up called efficiency", "found / devices for", "found for", "efficient"),
    Wrong("b is the serial part", "float(a / (a + b))", "float(b / (a + b))", "exact"),
    Wrong(
        "the two ends alone",
        "for devices in seconds]\n",
        "for devices in seconds]\n    ends = (min(seconds), max(seconds))\n"
        "    rows, seconds = [[1.0, 1.0 / n] for n in ends], {n: seconds[n] for n in ends}\n",
        "fitted",
    ),
    Wrong("parts that may be negative", "(a, b), _ = nnls(", "(a, b), *_ = np.linalg.lstsq(", "slower"),
    Wrong(
        "a share that is capped at 1 alone",
        "    (a, b), _ = nnls(np.array(rows), np.array(list(seconds.values())))\n    return float(a / (a + b))\n",
        "    (a, b), *_ = np.linalg.lstsq(np.array(rows), np.array(list(seconds.values())))\n"
        "    return float(min(a / (a + b), 1))\n",
        "superlinear",
    ),
    Wrong("a whole number of devices", "    return 1 + 1 / share\n", "    return round(1 + 1 / share)\n", "half"),
    Wrong("a perfect machine", "1 / (share + (1 - share) / devices)", "devices * (1 - share)", "predicted"),
    Wrong("where the speed-up is a half of its limit", "    return 1 + 1 / share\n", "    return 1 / share\n", "half"),
]
