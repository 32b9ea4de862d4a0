"""`python -m keras_impl`; `--help` prints all options. With KERAS_BACKEND=torch or jax: the tutorial on these."""

import os

from common.main import main

backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
if backend == "tensorflow":
    main("keras")
else:
    main(f"keras_{backend}", "keras_impl")
