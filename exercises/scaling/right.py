"""Other right answers that the checks of scaling must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "a straight line, cut off where a part would be negative",
        "    (a, b), _ = nnls(np.array(rows), np.array(list(seconds.values())))\n",
        "    b, a = np.polyfit([1 / devices for devices in seconds], list(seconds.values()), 1)\n"
        "    a, b = max(a, 0.0), max(b, 0.0)\n",
    ),
    Right(
        "a search with bounds",
        "    (a, b), _ = nnls(np.array(rows), np.array(list(seconds.values())))\n",
        "    from scipy.optimize import curve_fit\n\n"
        "    devices, found = np.array(list(seconds), float), np.array(list(seconds.values()))\n"
        "    (a, b), _ = curve_fit(lambda n, a, b: a + b / n, devices, found, p0=(1, 1), bounds=(0, np.inf))\n",
    ),
]
